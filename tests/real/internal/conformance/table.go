package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"watershed.test/real/internal/compare"
	"watershed.test/real/internal/require"
)

var tableFile = filepath.Join("..", "..", "docs", "conformance.md")

const tableIntroduction = `# Conformance

For those who ask what a certain read gets: what kube-apiserver v1.37.1 answers to every combination of the options of
gets, lists and watches, what watershed answers, and from where. ` + "`CONFORMANCE_WRITE=1 make conformance`" + ` writes this
page. ` + "`TestAnswersConformToUpstream/matrix`" + ` fails if a cell is answered otherwise, or from elsewhere. ` + "`make conformance`" + `
asks for all cells. ` + "`go test`" + ` asks for all gets and, other ones each time, half of the lists that upstream accepts, one
in 32 of those that it refuses, and a third of the watches.

*The same* means status, headers and body, byte for byte; [the tests' README](../tests/real/README.md#conformance) has
the few exceptions. Combinations that are answered alike share a row.

The types are a built-in one with namespaces, one without, events (which upstream does not cache), and a custom one.

| value | what |
|---|---|
| resourceVersion current | of the type's last change |
| resourceVersion old | before the last three changes, and held |
| resourceVersion ancient | 1, which etcd no longer has |
| resourceVersion future | far ahead |
| continue valid | upstream's token for old |
| continue expired, inconsistent | the same at version 1, at -1 |
| garbage | what is no such value |
| from | the header ` + "`X-Watershed-Source`" + ` |

## What is forwarded, and why

| read | reason | why it is not answered from memory |
|---|---|---|
| one object, version unset | ` + "`consistent-read`" + ` | it costs upstream no more than the proof that memory is new enough; many at the same time share one |
| YAML, CBOR | ` + "`representation`" + ` | upstream prints them from decoded objects by the rules of Go's libraries; clients that show YAML ask for JSON |
| watches from before the first list | ` + "`before-first-list`" + ` | upstream alone knows those events; the watch ends as soon as memory can go on |
| watches of events from before the history in memory | ` + "`before-history`" + ` | upstream has no watch cache of events: etcd may have that history, and otherwise refuses in its own words |
| a version that memory does not reach in 0.1 s, or for streamed initial events in a second | ` + "`version-ahead`" + ` | upstream waits by its own rule, and refuses in its own words |
| versions older than the window, or five minutes behind | ` + "`exact-version`" + ` | upstream may hold them, and otherwise says that they are gone and gives a token to go on with |
| tokens with version -1 | ` + "`continue-token`" + ` | each page is of another state, and upstream's is the newest |
| pages by ` + "`metadata.namespace`" + ` | ` + "`paging`" + ` | upstream's tokens are relative to the selected namespace, and differ between releases |
| one name with a limit and a version | ` + "`parameters`" + ` | upstream reads the newest state where a list would be of that version |
| later pages with a limit and version 0 | ` + "`paging`" + ` | releases differ in whether the limit counts |
| one object that a scope with selectors lacks | ` + "`not-covered`" + ` | it may exist outside of the scope |
| shards, while upstream does not tell if it has them | ` + "`sharding`" + ` | a gate of upstream decides, and its answer shows it |
| parameters and selectors that upstream refuses | ` + "`parameters`" + `, ` + "`selector`" + ` | it does so in its own words |
`

// row is one row of a table: for each axis the values that it covers, and the outcome that they
// share.
type row struct {
	values  [][]string
	outcome outcome
}

func (r row) has(c cell) bool {
	for i, v := range r.values {
		if !slices.Contains(v, c[i]) {
			return false
		}
	}
	return true
}

// grid holds the outcomes of a matrix's cells.
type grid struct {
	axes     []axis
	outcomes map[string]outcome
}

func (g *grid) at(c cell) outcome { return g.outcomes[strings.Join(c, "|")] }

// rows describes all outcomes in few rows.
func (g *grid) rows() []row {
	var box [][]string
	for _, a := range g.axes {
		box = append(box, a.values)
	}
	rows := g.within(box)
	for merged := true; merged; {
		rows, merged = merge(rows)
	}
	return rows
}

// named returns a short name for some values of an axis.
func (a axis) named(values []string) string {
	var in, out []string
	for _, v := range a.values {
		if slices.Contains(values, v) {
			in = append(in, v)
		} else {
			out = append(out, v)
		}
	}
	switch {
	case len(out) == 0:
		return "any"
	case len(out) == 1 && len(in) > 2:
		return "not " + out[0]
	}
	return strings.Join(in, ", ")
}

// valuesOf returns the values that a name from named stands for.
func (a axis) valuesOf(name string) []string {
	if name == "any" {
		return a.values
	}
	if but, found := strings.CutPrefix(name, "not "); found {
		return slices.DeleteFunc(slices.Clone(a.values), func(v string) bool { return v == but })
	}
	return strings.Split(name, ", ")
}

// merge joins two rows that differ in one axis only, if there are such.
func merge(rows []row) ([]row, bool) {
	for i, r := range rows {
		for j := i + 1; j < len(rows); j++ {
			if r.outcome != rows[j].outcome {
				continue
			}
			at, apart := 0, 0
			for axis := range r.values {
				if !slices.Equal(r.values[axis], rows[j].values[axis]) {
					at, apart = axis, apart+1
				}
			}
			if apart == 1 {
				r.values[at] = slices.Concat(r.values[at], rows[j].values[at])
				return slices.Delete(rows, j, j+1), true
			}
		}
	}
	return rows, false
}

// within returns the rows of a part of the grid.
func (g *grid) within(box [][]string) (rows []row) {
	if o, same := g.uniform(box); same {
		return []row{{slices.Clone(box), o}}
	}
	// Values that decide the outcome alone come first.
	for axis := 0; axis < len(box); axis++ {
		for _, v := range box[axis] {
			if o, same := g.uniform(narrowed(box, axis, v)); same {
				alike, others := []string{}, []string{}
				for _, v := range box[axis] {
					if also, same := g.uniform(narrowed(box, axis, v)); same && also == o {
						alike = append(alike, v)
					} else {
						others = append(others, v)
					}
				}
				rows = append(rows, row{narrowed(box, axis, alike...), o})
				return append(rows, g.within(narrowed(box, axis, others...))...)
			}
		}
	}
	axis := slices.IndexFunc(box, func(v []string) bool { return len(v) > 1 })
	type group struct {
		values []string
		rows   []row
	}
	var groups []*group
	for _, v := range box[axis] {
		part := g.within(narrowed(box, axis, v))
		for i := range part {
			part[i].values[axis] = nil
		}
		i := slices.IndexFunc(groups, func(other *group) bool { return fmt.Sprint(other.rows) == fmt.Sprint(part) })
		if i < 0 {
			groups = append(groups, &group{rows: part})
			i = len(groups) - 1
		}
		groups[i].values = append(groups[i].values, v)
	}
	for _, group := range groups {
		for _, r := range group.rows {
			r.values[axis] = slices.Clone(group.values)
			rows = append(rows, r)
		}
	}
	return rows
}

func narrowed(box [][]string, axis int, values ...string) [][]string {
	box = slices.Clone(box)
	box[axis] = values
	return box
}

// uniform reports whether a part of the grid has a single outcome.
func (g *grid) uniform(box [][]string) (o outcome, same bool) {
	all := combinations(box)
	o = g.at(all[0])
	for _, c := range all {
		if g.at(c) != o {
			return o, false
		}
	}
	return o, true
}

// holdTable compares outcomes with the committed table, or writes the table.
func holdTable(t *testing.T, results []map[string]outcome) {
	t.Helper()
	if writeTable {
		require.NoError(t, os.WriteFile(tableFile, []byte(renderTable(results)), 0o644))
		return
	}
	text := string(require.Value(os.ReadFile(tableFile))(t))
	if introduction, _, _ := strings.Cut(text, "\n## "+matrices[0].name+"\n"); introduction != tableIntroduction {
		t.Errorf("the introduction of %s is not what would be written\n%s", tableFile, compare.Diff(tableIntroduction, introduction))
	}
	wrong := 0
	for i, m := range matrices {
		rows := parseTable(t, text, m)
		for _, c := range m.cells() {
			o, asked := results[i][strings.Join(c, "|")]
			if !asked {
				continue
			}
			at := slices.IndexFunc(rows, func(r row) bool { return r.has(c) })
			if at < 0 {
				t.Fatalf("%s has no row for %s %v", tableFile, m.name, c)
			}
			if rows[at].outcome != o {
				if wrong++; wrong <= compare.ShownDifferences {
					t.Errorf("%s %v is now: %v; in %s: %v", m.name, c, o, tableFile, rows[at].outcome)
				}
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d cells differ from %s; CONFORMANCE_WRITE=1 rewrites it", wrong, tableFile)
	}
}

func renderTable(results []map[string]outcome) string {
	var b strings.Builder
	b.WriteString(tableIntroduction)
	for i, m := range matrices {
		same, from := 0, map[string]int{}
		for _, o := range results[i] {
			if o.ours == "the same" {
				same++
			}
			source, _, _ := strings.Cut(o.source, ";")
			from[source]++
		}
		fmt.Fprintf(&b, "\n## %s\n\n%d combinations, %d answered the same:\n", m.name, len(results[i]), same)
		fmt.Fprintf(&b, "%d from the snapshot, %d from the window, %d behind a proof, %d forwarded.\n\n",
			from["snapshot"], from["window"], from["linearizable"], from["forward"])
		for _, a := range m.axes {
			fmt.Fprintf(&b, "| %s ", a.name)
		}
		fmt.Fprintf(&b, "| upstream | watershed | from |\n%s\n", strings.Repeat("|---", len(m.axes)+3)+"|")
		g := grid{m.axes, results[i]}
		for _, r := range g.rows() {
			for i, v := range r.values {
				fmt.Fprintf(&b, "| %s ", m.axes[i].named(v))
			}
			fmt.Fprintf(&b, "| %v |\n", r.outcome)
		}
	}
	return b.String()
}

func parseTable(t *testing.T, text string, m *matrix) (rows []row) {
	t.Helper()
	_, section, found := strings.Cut(text, "\n## "+m.name+"\n")
	if !found {
		t.Fatalf("%s has no section %s", tableFile, m.name)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	n := len(m.axes)
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| "+m.axes[0].name+" |") {
			continue
		}
		fields := strings.Split(strings.Trim(line, "| "), " | ")
		if len(fields) != n+3 {
			t.Fatalf("not a row of %s: %s", m.name, line)
		}
		r := row{outcome: outcome{fields[n], fields[n+1], fields[n+2]}}
		for i, f := range fields[:n] {
			r.values = append(r.values, m.axes[i].valuesOf(f))
		}
		rows = append(rows, r)
	}
	return rows
}
