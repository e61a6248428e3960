package random

import (
	"crypto/rand"
)

// Bytes returns data that exceeds several flow control windows.
func Bytes(size int) []byte {
	data := make([]byte, size)
	rand.Read(data)
	return data
}
