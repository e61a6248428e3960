package real

import "testing"

func conformanceWatches(t *testing.T) {}
func conformanceFaults(t *testing.T)  {}
