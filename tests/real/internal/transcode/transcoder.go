package transcode

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Answer is what the transcoder makes of an object.
type Answer struct {
	// Explained tells if Text is JSON, and not a reason.
	Explained bool
	Text      []byte
}

// release is the minor release whose types the objects are of.
const release = 37

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
		for _, frame := range [][]byte{fmt.Appendf(nil, "%s %s %d", group, kind, release), object.Message} {
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
