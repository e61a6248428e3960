package metrics

import (
	"slices"
	"testing"
)

// TestSamplesAreRead reads lines with and without labels, and labels whose names end alike.
func TestSamplesAreRead(t *testing.T) {
	const text = "# HELP a What a counts.\na 7\nb_total{subresource=\"status\",resource=\"pods\"} 1.5e+06\nc{le=\"+Inf\"} NaN\n\n"
	all := slices.Collect(Samples(text))
	if len(all) != 3 || all[0] != (Sample{"a", "", 7}) || all[1].Name != "b_total" || all[1].Value != 1_500_000 {
		t.Fatalf("%+v", all)
	}
	for name, value := range map[string]string{"resource": "pods", "subresource": "status", "source": "", "le": ""} {
		if got := all[1].Label(name); got != value {
			t.Errorf("%s is %q", name, got)
		}
	}
}
