package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/require"
)

// Schema is the part of a JSON schema that is compared.
type Schema struct {
	Ref        string `json:"$ref"`
	Type       any
	Const      any
	Enum       []any
	OneOf      []*Schema
	Properties map[string]*Schema
	Items      *Schema
	Defs       map[string]*Schema `json:"$defs"`
}

// ReadSchema reads a JSON schema.
func ReadSchema(t *testing.T, file string) *Schema {
	t.Helper()
	schema := new(Schema)
	require.NoError(t, json.Unmarshal(require.Value(os.ReadFile(file))(t), schema))
	return schema
}

// Differences returns what the schema `chart` lacks of the schema `program`, and the keys that it has
// besides. It may accept further types and values of a key.
func Differences(program, chart *Schema) []string {
	return differences("config", program, program.Defs, chart)
}

func differences(place string, program *Schema, defs map[string]*Schema, chart *Schema) (wrong []string) {
	if name, found := strings.CutPrefix(program.Ref, "#/$defs/"); found {
		program = defs[name]
	}
	if chart == nil {
		return []string{place + ": the chart does not describe it"}
	}
	for key := range program.Properties {
		if chart.Properties[key] == nil {
			wrong = append(wrong, fmt.Sprintf("%s.%s: the chart does not know it", place, key))
		}
	}
	for key, value := range chart.Properties {
		if program.Properties[key] == nil {
			wrong = append(wrong, fmt.Sprintf("%s.%s: the program does not know it", place, key))
		} else {
			wrong = append(wrong, differences(place+"."+key, program.Properties[key], defs, value)...)
		}
	}
	if program.Items != nil && chart.Type == "array" {
		wrong = append(wrong, differences(place+"[]", program.Items, defs, chart.Items)...)
	}
	values := slices.Clone(program.Enum)
	for _, choice := range program.OneOf {
		values = append(values, choice.Const)
	}
	for _, value := range values {
		// The mode always is for single types.
		if place == "config.cache" && value == "always" {
			continue
		}
		if !slices.Contains(chart.Enum, value) {
			wrong = append(wrong, fmt.Sprintf("%s: the chart does not accept %v", place, value))
		}
	}
	for _, one := range types(program) {
		if !slices.Contains(types(chart), one) {
			wrong = append(wrong, fmt.Sprintf("%s: it is of type %v, and the chart wants %v", place, one, chart.Type))
		}
	}
	return wrong
}

// types returns the types that a schema names.
func types(schema *Schema) []any {
	if several, ok := schema.Type.([]any); ok {
		return several
	}
	if schema.Type == nil {
		return nil
	}
	return []any{schema.Type}
}
