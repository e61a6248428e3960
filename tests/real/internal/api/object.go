package api

import (
	"encoding/json"
)

// JSON returns an object as the body of a request.
func JSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
