package transcode

import (
	"fmt"
	"math"
	"strings"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
)

// Filler returns what fills objects with values at the edges of what their types can hold: strings
// that JSON escapes or that are not UTF-8, lists that are nil and empty, zero and extreme numbers
// and times. A seed repeats them.
func Filler(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(14).Funcs(
		func(*metav1.TypeMeta, randfill.Continue) {},
		fillString,
		func(v *int32, c randfill.Continue) { *v = int32(oddInteger(c)) },
		func(v *int64, c randfill.Continue) { *v = oddInteger(c) },
		fillFloat,
		func(v *metav1.Time, c randfill.Continue) { v.Time = oddTime(c) },
		func(v *metav1.MicroTime, c randfill.Continue) { v.Time = oddTime(c) },
		func(v *metav1.Duration, c randfill.Continue) { v.Duration = time.Duration(oddInteger(c)) },
		fillQuantity,
		func(v *intstr.IntOrString, c randfill.Continue) {
			v.Type = intstr.Type(c.Intn(2))
			c.Fill(&v.IntVal)
			c.Fill(&v.StrVal)
		},
		func(v *runtime.RawExtension, c randfill.Continue) { v.Raw = oddJSON(c) },
		func(v *metav1.FieldsV1, c randfill.Continue) { v.SetRawBytes(oddJSON(c)) },
		func(v *apiextensions.JSON, c randfill.Continue) { v.Raw = oddJSON(c) },
	)
}

// pieces of odd strings.
var pieces = []string{
	"", "a", "app.kubernetes.io/name", `"`, `\`, "/", "<", ">", "&", "\x00", "\b", "\f", "\n", "\r", "\t",
	"\x1f", "\x7f", "\u0080", "\u00e4", "\u2027", "\u2028", "\u2029", "\u202a", "\ufffd", "\ufeff", "\U0001f600",
	"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf0\x9f\x98", "\xe2\x80", "\xe2", "\xf4\x90\x80\x80", "null", "{}",
}

func fillString(v *string, c randfill.Continue) {
	switch c.Intn(4) {
	case 0:
		*v = ""
	case 1:
		*v = fmt.Sprintf("plain-%d", c.Intn(1000))
	default:
		var text strings.Builder
		for range c.Intn(6) {
			text.WriteString(pieces[c.Intn(len(pieces))])
		}
		*v = text.String()
	}
}

func oddInteger(c randfill.Continue) int64 {
	edges := []int64{0, 0, 1, -1, 9, 10, 127, 128, 999, 1000, 59_999_999_999, 60_000_000_000, 3_600_000_000_000,
		math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}
	if c.Intn(2) == 0 {
		return edges[c.Intn(len(edges))]
	}
	return int64(c.Uint64()) >> c.Intn(64)
}

func fillFloat(v *float64, c randfill.Continue) {
	edges := []float64{0, math.Copysign(0, -1), 1, -1.5, 0.1, 1e-6, 9.999999e-7, 1e20, 1e21, 123456789.125,
		math.MaxFloat64, math.SmallestNonzeroFloat64, -1e-300}
	if c.Intn(2) == 0 {
		*v = edges[c.Intn(len(edges))]
		return
	}
	for *v = math.NaN(); math.IsNaN(*v) || math.IsInf(*v, 0); {
		*v = math.Float64frombits(c.Uint64())
	}
}

func oddTime(c randfill.Continue) time.Time {
	const first, last = -62_135_596_799, 253_402_300_799
	var seconds int64
	switch c.Intn(6) {
	case 0:
		return time.Time{}
	case 1:
		seconds = []int64{0, -1, first, last, 951_782_400, 951_868_799}[c.Intn(6)]
	case 2:
		seconds = first + c.Int63n(last-first)
	default:
		seconds = 1_700_000_000 + c.Int63n(100_000_000)
	}
	nanoseconds := []int64{0, 0, 1, 999, 1000, 999_999_999}[c.Intn(6)]
	return time.Unix(seconds, nanoseconds)
}

func fillQuantity(v *resource.Quantity, c randfill.Continue) {
	formats := []resource.Format{resource.DecimalSI, resource.BinarySI, resource.DecimalExponent}
	switch c.Intn(4) {
	case 0:
		*v = resource.Quantity{}
	case 1:
		*v = *resource.NewScaledQuantity(c.Int63n(1_000_000)-500_000, resource.Scale(c.Intn(30)-12))
	case 2:
		*v = *resource.NewMilliQuantity(oddInteger(c), formats[c.Intn(3)])
	default:
		*v = *resource.NewQuantity(oddInteger(c), formats[c.Intn(3)])
	}
}

// oddJSON returns a JSON value with spaces, with what HTML escapes, and with text that is no UTF-8.
func oddJSON(c randfill.Continue) []byte {
	values := []string{
		`{}`, ` { "a" : [ ] } `, `[1,-0.5E+7,1e-9, true ,false,null]`, `"<&>"`, "\"\u2028\u2029\"", "\"\xff\"",
		`{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`, `"\ud800\/\u003c"`, `null`, `12345678901234567890`,
		`{"apiVersion":"v1","kind":"Pod","x":"a\nb"}`, "\t[\r\n{}]\n",
	}
	if c.Intn(8) == 0 {
		return nil
	}
	return []byte(values[c.Intn(len(values))])
}
