package api

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"watershed.test/real/internal/require"
)

// JSON returns an object as the body of a request.
func JSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// VersionOf returns the resourceVersion of an object or a list in JSON.
func VersionOf(t *testing.T, text string) string {
	t.Helper()
	var about metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal([]byte(text), &about))
	return about.ResourceVersion
}
