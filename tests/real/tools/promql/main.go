// Command promql parses and evaluates PromQL for the tests of rules and dashboards, with
// Prometheus' own parser and engine.
//
// It reads a JSON object on stdin and prints a JSON array with one answer for each expression.
// Without series, expressions are only parsed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// Question is the input.
type Question struct {
	Expressions []string
	// Series have one sample a minute. The last one is of the moment at which expressions are
	// evaluated.
	Series []Series
}

// Series is one time series.
type Series struct {
	Labels map[string]string
	Values []float64
}

// Answer is the output for one expression.
type Answer struct {
	// Error says why the expression cannot be parsed or evaluated.
	Error string `json:",omitempty"`
	// Metrics are the metrics that the expression selects.
	Metrics []Selected
	// Result is the value of the expression.
	Result []Sample `json:",omitempty"`
}

// Selected is a metric with the labels that the expression uses.
type Selected struct {
	Name   string
	Labels []string
	// Values are the values that labels are compared with: for a regular expression, its
	// alternatives.
	Values map[string][]string `json:",omitempty"`
}

// Sample is one line of a result.
type Sample struct {
	Labels map[string]string
	Value  float64
}

func main() {
	log.SetFlags(0)
	var question Question
	if err := json.NewDecoder(os.Stdin).Decode(&question); err != nil {
		log.Fatal(err)
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e6, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true,
		Parser: parser.NewParser(parser.Options{}),
	})
	answers := []Answer{}
	for _, text := range question.Expressions {
		answers = append(answers, answer(engine, text, question.Series))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatal(err)
	}
}

func answer(engine *promql.Engine, text string, series []Series) (a Answer) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	a.Metrics = metrics(expr)
	if series == nil {
		return a
	}
	query, err := engine.NewInstantQuery(context.Background(), memory(series), nil, text, now)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		return Answer{Error: result.Err.Error()}
	}
	switch value := result.Value.(type) {
	case promql.Vector:
		for _, sample := range value {
			a.Result = append(a.Result, Sample{Labels: sample.Metric.Map(), Value: sample.F})
		}
	case promql.Scalar:
		a.Result = []Sample{{Value: value.V}}
	default:
		a.Error = fmt.Sprintf("a %s is no result for an instant", value.Type())
	}
	return a
}

// metrics returns the metrics that an expression selects, and the labels that it matches or
// aggregates by.
func metrics(expr parser.Expr) (found []Selected) {
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		selected := Selected{Name: selector.Name, Values: map[string][]string{}}
		for _, matcher := range selector.LabelMatchers {
			if matcher.Name == labels.MetricName {
				continue
			}
			selected.Labels = append(selected.Labels, matcher.Name)
			values := []string{matcher.Value}
			if matcher.Type == labels.MatchRegexp || matcher.Type == labels.MatchNotRegexp {
				values = strings.Split(matcher.Value, "|")
			}
			selected.Values[matcher.Name] = append(selected.Values[matcher.Name], values...)
		}
		for _, above := range path {
			if aggregate, ok := above.(*parser.AggregateExpr); ok && !aggregate.Without {
				selected.Labels = append(selected.Labels, aggregate.Grouping...)
			}
		}
		slices.Sort(selected.Labels)
		selected.Labels = slices.Compact(selected.Labels)
		found = append(found, selected)
		return nil
	})
	return found
}

// now is the moment of every evaluation.
var now = time.Unix(1_000_000, 0)

// memory holds series.
type memory []Series

func (m memory) Querier(_, _ int64) (storage.Querier, error) { return m, nil }

func (m memory) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &set{at: -1}
	for _, series := range m {
		named := labels.FromMap(series.Labels)
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(named.Get(m.Name)) }) {
			set.series = append(set.series, storage.NewListSeries(named, samples(series.Values)))
		}
	}
	slices.SortFunc(set.series, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return set
}

func samples(values []float64) (all []chunks.Sample) {
	for i, value := range values {
		at := now.Add(-time.Duration(len(values)-1-i) * time.Minute)
		all = append(all, sample{at.UnixMilli(), value})
	}
	return all
}

func (m memory) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (m memory) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (m memory) Close() error { return nil }

type set struct {
	series []storage.Series
	at     int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *set) At() storage.Series                { return s.series[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) ST() int64                     { return 0 }
func (s sample) Copy() chunks.Sample           { return s }
