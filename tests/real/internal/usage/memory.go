package usage

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// SearchMemory looks for texts in the memory of a child process, and returns the part of it that has
// one.
func SearchMemory(pid int, texts ...string) (string, error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", err
	}
	defer maps.Close()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return "", err
	}
	defer memory.Close()
	const overlap = 4096
	buffer := make([]byte, 4<<20)
	read := 0
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var from, to uint64
		var rights string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &rights); err != nil {
			return "", fmt.Errorf("%q: %w", lines.Text(), err)
		}
		if rights[0] != 'r' || to > math.MaxInt64 {
			continue
		}
		for at := from; at < to; {
			n, err := memory.ReadAt(buffer[:min(uint64(len(buffer)), to-at)], int64(at))
			read += n
			for _, text := range texts {
				if bytes.Contains(buffer[:n], []byte(text)) {
					return lines.Text(), nil
				}
			}
			// The kernel's own pages cannot be read.
			if err != nil && !errors.Is(err, io.EOF) || n == 0 {
				break
			}
			if at += uint64(n); at < to {
				at -= uint64(min(overlap, n-1))
			}
		}
	}
	if read < 1<<20 {
		return "", fmt.Errorf("only %d bytes could be read", read)
	}
	return "", lines.Err()
}
