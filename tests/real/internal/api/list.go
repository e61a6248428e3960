package api

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ContinueToken is the content of a continue token.
type ContinueToken struct {
	V     string `json:"v"`
	RV    int64  `json:"rv"`
	Start string `json:"start"`
}

// ParseContinueToken decodes a continue token.
func ParseContinueToken(text string) (t ContinueToken, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	return t, err
}

func (t ContinueToken) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(JSON(t)))
}

// spellings holds what WritesSlash has found, by URL.
var spellings sync.Map

// WritesSlash reports whether upstream starts the keys in continue tokens with a slash. Older
// releases read pages at a version from etcd and omit the slash. All releases read both
// spellings.
func (t Target) WritesSlash() (bool, error) {
	if known, ok := spellings.Load(t.URL); ok {
		return known.(bool), nil
	}
	v, err := t.Revision()
	if err != nil {
		return false, err
	}
	a, err := t.Try(Request{Path: fmt.Sprintf("/api/v1/namespaces?limit=1&resourceVersion=%d", v)})
	if err != nil {
		return false, err
	}
	page, _, _ := ParseList("application/json", a.Body)
	token, err := ParseContinueToken(page.Continue)
	if err != nil || token.Start == "" {
		return false, fmt.Errorf("upstream returns no token: %v: %d %s", err, a.Status, a.Body)
	}
	slash := strings.HasPrefix(token.Start, "/")
	spellings.Store(t.URL, slash)
	return slash, nil
}

// Spelled returns a token in the form in which tokens are compared: without the slash, unless
// upstream writes it.
func (token ContinueToken) Spelled(slash bool) ContinueToken {
	if !slash {
		token.Start = strings.TrimPrefix(token.Start, "/")
	}
	return token
}

// Revision returns the newest version of the whole API.
func (t Target) Revision() (uint64, error) {
	a, err := t.Try(Request{Path: "/api/v1/namespaces?limit=1"})
	if err != nil {
		return 0, err
	}
	list, _, ok := ParseList("application/json", a.Body)
	if !ok {
		return 0, fmt.Errorf("%d %s", a.Status, a.Body)
	}
	return ParseVersion(list.ResourceVersion), nil
}

// ParseList returns the version and the token of a list in any encoding. rest is every other
// byte of the body.
func ParseList(contentType, body string) (list metav1.ListMeta, rest string, ok bool) {
	switch kind, _, _ := strings.Cut(contentType, ";"); kind {
	case "application/json":
		return parseListJSON(body)
	case "application/yaml":
		return parseListYAML(body)
	case "application/vnd.kubernetes.protobuf":
		return parseListProtobuf(body)
	}
	return list, "", false
}

func parseListJSON(body string) (list metav1.ListMeta, rest string, ok bool) {
	d := json.NewDecoder(strings.NewReader(body))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return list, "", false
	}
	isList := false
	var raw json.RawMessage
	var from, to int64
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return list, "", false
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return list, "", false
		}
		switch key {
		case "metadata":
			raw, to = value, d.InputOffset()
			from = to - int64(len(value))
		case "items", "rows":
			isList = true
		}
	}
	if !isList || json.Unmarshal(raw, &list) != nil {
		return list, "", false
	}
	return list, body[:from] + blankListMeta(body[from:to], list) + body[to:], true
}

// blankListMeta replaces a list's version and token in the text that has them.
func blankListMeta(text string, list metav1.ListMeta) string {
	if list.ResourceVersion != "" {
		text = strings.Replace(text, `"`+list.ResourceVersion+`"`, `"VERSION"`, 1)
	}
	if list.Continue != "" {
		text = strings.Replace(text, list.Continue, "TOKEN", 1)
	}
	return text
}

var (
	yamlMetadata = regexp.MustCompile(`(?m)^metadata:\n(?:  .*\n)*`)
	yamlVersion  = regexp.MustCompile(`(?m)^  resourceVersion: "(\d+)"$`)
	yamlContinue = regexp.MustCompile(`(?m)^  continue: (\S+)$`)
)

func parseListYAML(body string) (list metav1.ListMeta, rest string, ok bool) {
	if !strings.Contains(body, "\nitems:") {
		return list, "", false
	}
	at := yamlMetadata.FindStringIndex(body)
	if at == nil {
		return list, "", false
	}
	block := body[at[0]:at[1]]
	if m := yamlVersion.FindStringSubmatch(block); m != nil {
		list.ResourceVersion = m[1]
	}
	if m := yamlContinue.FindStringSubmatch(block); m != nil && m[1] != `""` {
		list.Continue = m[1]
	}
	return list, body[:at[0]] + blankListMeta(block, list) + body[at[1]:], true
}

func parseListProtobuf(body string) (list metav1.ListMeta, rest string, ok bool) {
	var envelope runtime.Unknown
	raw, enveloped := strings.CutPrefix(body, "k8s\x00")
	if !enveloped || envelope.Unmarshal([]byte(raw)) != nil || !strings.HasSuffix(envelope.Kind, "List") {
		return list, "", false
	}
	first, others, ok := firstField(envelope.Raw)
	if !ok || list.Unmarshal(first) != nil {
		return list, "", false
	}
	shell := list
	shell.ResourceVersion, shell.Continue = "", ""
	envelope.Raw = nil
	return list, fmt.Sprintf("%+v %+v %s", envelope, JSON(shell), others), true
}

// firstField splits a protobuf message after field 1, which is itself a message. Lists and
// objects of Kubernetes have their metadata there.
func firstField(message []byte) (first, others []byte, ok bool) {
	if len(message) == 0 || message[0] != 0x0a {
		return nil, nil, false
	}
	size, n := binary.Uvarint(message[1:])
	if n <= 0 || uint64(len(message)-1-n) < size {
		return nil, nil, false
	}
	return message[1+n : 1+n+int(size)], message[1+n+int(size):], true
}
