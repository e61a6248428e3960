package herds

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/testbed"
)

// Webhook is a webhook that converts herds between v1, with spec.heads in digits, and v2,
// with spec.amount as a number. It also labels each object with its version, as webhooks may.
type Webhook struct {
	*httptest.Server
	Broken atomic.Bool
}

// NewWebhook starts a webhook.
func NewWebhook(t *testing.T) *Webhook {
	c := &Webhook{}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(c.answer))
	t.Cleanup(c.Close)
	return c
}

// conversion returns the webhook's place in a definition.
func (c *Webhook) conversion() string {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	return api.JSON(map[string]any{"strategy": "Webhook", "webhook": map[string]any{"conversionReviewVersions": []string{"v1"},
		"clientConfig": map[string]any{"url": c.URL + "/convert", "caBundle": authority}}})
}

func (c *Webhook) answer(w http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion, Kind string
		Request          struct {
			UID, DesiredAPIVersion string
			Objects                []map[string]any
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || c.Broken.Load() {
		http.Error(w, fmt.Sprintf("out of order (%v)", err), http.StatusInternalServerError)
		return
	}
	for _, o := range review.Request.Objects {
		convert(o, review.Request.DesiredAPIVersion)
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, api.JSON(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind, "response": map[string]any{
		"uid": review.Request.UID, "convertedObjects": review.Request.Objects, "result": map[string]any{"status": "Success"}}}))
}

func convert(herd map[string]any, to string) {
	herd["apiVersion"] = to
	_, version, _ := strings.Cut(to, "/")
	spec := herd["spec"].(map[string]any)
	if heads, has := spec["heads"].(string); has && version == "v2" {
		delete(spec, "heads")
		spec["amount"], _ = strconv.Atoi(heads)
	}
	if amount, has := spec["amount"].(float64); has && version == "v1" {
		delete(spec, "amount")
		spec["heads"] = fmt.Sprint(amount)
	}
	metadata := herd["metadata"].(map[string]any)
	if metadata["labels"] == nil {
		metadata["labels"] = map[string]any{}
	}
	metadata["labels"].(map[string]any)["form"] = version
}

// Converted returns a type whose versions a webhook converts.
func Converted(t *testing.T, c *Webhook) Herd {
	const schema = `"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%s}}}}}`
	return Herd{
		group:      testbed.Slug(t) + ".example.test",
		conversion: c.conversion(),
		versions: []string{
			`{"name":"v1","selectableFields":[{"jsonPath":".spec.heads"}],` + fmt.Sprintf(schema, `"heads":{"type":"string"}`) + `}`,
			`{"name":"v2","selectableFields":[{"jsonPath":".spec.amount"}],"additionalPrinterColumns":[{"name":"Amount","type":"integer","jsonPath":".spec.amount"}],` +
				fmt.Sprintf(schema, `"amount":{"type":"integer"}`) + `}`,
		},
	}
}
