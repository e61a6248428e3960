package api

import (
	"encoding/json"
)

// JSON is an object as a request body.
func JSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
