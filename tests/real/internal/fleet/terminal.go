package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"watershed.test/real/internal/api"
)

// AcceptOfKubectl is what kubectl get accepts.
const AcceptOfKubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

// Terminal refreshes the table of a collection as `watch kubectl get` does, in pages of 500.
type Terminal struct {
	To   api.Target
	Path string
	// Via has the terminal's own connection.
	Via *http.Client
	// Tally counts the answers, if it is set.
	Tally *Tally
}

// Refresh reads the whole table once and returns the number of its rows and of its pages.
func (m Terminal) Refresh(ctx context.Context) (rows, pages int, err error) {
	query := "?limit=500"
	for {
		var table struct {
			Kind     string
			Metadata struct{ Continue string }
			Rows     []json.RawMessage
		}
		if err := m.page(ctx, query, &table); err != nil {
			return rows, pages, err
		}
		if table.Kind != "Table" {
			return rows, pages, fmt.Errorf("%s is a %q", m.Path+query, table.Kind)
		}
		pages++
		rows += len(table.Rows)
		if table.Metadata.Continue == "" {
			return rows, pages, nil
		}
		query = "?limit=500&continue=" + url.QueryEscape(table.Metadata.Continue)
	}
}

func (m Terminal) page(ctx context.Context, query string, into any) error {
	answer, err := m.To.Open(ctx, api.Request{Path: m.Path + query, Accept: AcceptOfKubectl, Via: m.Via})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	if m.Tally != nil {
		m.Tally.Add("terminals", answer.Request, answer)
	}
	return json.Unmarshal(text, into)
}

// Run refreshes some times, with a pause after each time, and returns the rows of the last.
func (m Terminal) Run(ctx context.Context, times int, pause time.Duration) (rows, pages int, err error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for range times {
		var more int
		if rows, more, err = m.Refresh(ctx); err != nil {
			return rows, pages, err
		}
		pages += more
		select {
		case <-ctx.Done():
			return rows, pages, nil
		case <-tick.C:
		}
	}
	return rows, pages, nil
}

// NewTerminal returns a terminal with a connection of its own.
func NewTerminal(to api.Target, path string, tally *Tally) Terminal {
	connection := &http.Transport{TLSClientConfig: to.TLS(), ForceAttemptHTTP2: true}
	return Terminal{To: to, Path: path, Via: &http.Client{Transport: connection}, Tally: tally}
}

// Close closes the connection.
func (m Terminal) Close() { m.Via.CloseIdleConnections() }
