// Package random gives tests random choices that a seed repeats.
package random

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"watershed.test/real/internal/require"
)

// Seed returns the seed of a test's choices: REAL_SEED or a new one, which it logs.
func Seed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("REAL_SEED"); text != "" {
		require.Value(fmt.Sscan(text, &seed))(t)
	}
	t.Logf("REAL_SEED=%d", seed)
	return seed
}

// Stream returns one of the random streams of a seed.
func Stream(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// Between returns a random duration.
func Between(chance *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(chance.Int64N(int64(most-least)))
}
