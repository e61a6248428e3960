package transcode

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// release is the minor release of the types here.
const release = 37

// Object is an object in both encodings, by a kube-apiserver of a minor release.
type Object struct {
	Kind     schema.GroupVersionKind
	Release  int
	Message  []byte
	Expected []byte
}

// Answer is what the transcoder makes of an object.
type Answer struct {
	// Explained tells if Text is JSON, and not a reason.
	Explained bool
	Text      []byte
}

// Transcoder is a running crates/transcode/examples/transcode.
type Transcoder struct {
	command *exec.Cmd
	input   io.WriteCloser
	output  io.Reader
}

// Start starts a program.
func Start(program string) (*Transcoder, error) {
	command := exec.Command(program)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &Transcoder{command, input, bufio.NewReaderSize(output, 1<<20)}, command.Start()
}

// Answers has all objects printed and hands each answer to a function, in their order. The program
// ends then.
func (t *Transcoder) Answers(objects []Object, take func(Object, Answer)) error {
	written := make(chan error, 1)
	go func() { written <- t.write(objects) }()
	err := t.read(objects, take)
	if err != nil {
		t.command.Process.Kill()
	}
	return errors.Join(err, <-written, t.command.Wait())
}

func (t *Transcoder) write(objects []Object) error {
	w := bufio.NewWriterSize(t.input, 1<<20)
	for _, object := range objects {
		group, kind := object.Kind.ToAPIVersionAndKind()
		for _, frame := range [][]byte{fmt.Appendf(nil, "%s %s %d", group, kind, object.Release), object.Message} {
			if err := binary.Write(w, binary.BigEndian, uint32(len(frame))); err != nil {
				return err
			}
			if _, err := w.Write(frame); err != nil {
				return err
			}
		}
	}
	return errors.Join(w.Flush(), t.input.Close())
}

func (t *Transcoder) read(objects []Object, take func(Object, Answer)) error {
	for _, object := range objects {
		var length uint32
		if err := binary.Read(t.output, binary.BigEndian, &length); err != nil {
			return fmt.Errorf("cannot read the answer to a %s: %w", object.Kind, err)
		}
		frame := make([]byte, length)
		if _, err := io.ReadFull(t.output, frame); err != nil {
			return fmt.Errorf("cannot read the answer to a %s: %w", object.Kind, err)
		}
		take(object, Answer{frame[0] == 1, frame[1:]})
	}
	return nil
}

// storedAsJSON are the groups whose objects kube-apiserver stores in JSON.
var storedAsJSON = []string{apiextensions.GroupName, apiregistration.GroupName}

// StoredAsJSON tells if kube-apiserver stores objects of a type in JSON.
func StoredAsJSON(kind schema.GroupVersionKind) bool {
	return slices.Contains(storedAsJSON, kind.Group)
}

// Excused tells if an object may be left unexplained: it is of an older release, which has fields of
// its own, or it is stored in JSON and has a list that is absent or empty.
func Excused(object Object, answer Answer) bool {
	const absentOrEmpty = ": an absent list and an empty one look the same"
	return !answer.Explained && (object.Release < release ||
		StoredAsJSON(object.Kind) && strings.HasSuffix(string(answer.Text), absentOrEmpty))
}

// Difference describes how an answer differs from what the API machinery prints.
func Difference(object Object, answer Answer) string {
	got, expected := answer.Text, object.Expected
	if answer.Explained && bytes.Equal(got, expected) {
		return ""
	}
	at := 0
	for at < min(len(got), len(expected)) && got[at] == expected[at] {
		at++
	}
	around := func(text []byte) string { return strconv.Quote(string(text[max(0, at-80):min(len(text), at+80)])) }
	return object.Kind.String() + ":\n     got " + around(got) + "\nexpected " + around(expected)
}
