// Package certificates makes client certificates and clients that send them.
package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"watershed.test/real/internal/api"
	"watershed.test/real/internal/require"
)

// Signer is a certificate authority of one test.
type Signer struct {
	File string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewSigner creates an authority and writes its certificate into dir.
func NewSigner(t *testing.T, dir, name string) *Signer {
	t.Helper()
	s := &Signer{File: filepath.Join(dir, name+".crt"), key: require.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
	s.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der := s.sign(t, s.cert, s.key)
	s.cert = require.Value(x509.ParseCertificate(der))(t)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	require.NoError(t, os.WriteFile(s.File, text, 0o600))
	return s
}

func (s *Signer) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	template.SerialNumber = require.Value(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)))(t)
	if template.NotBefore.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	return require.Value(x509.CreateCertificate(rand.Reader, template, s.cert, key.Public(), s.key))(t)
}

// Person returns a client's certificate.
func (s *Signer) Person(t *testing.T, template *x509.Certificate) *tls.Certificate {
	t.Helper()
	key := require.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	return &tls.Certificate{Certificate: [][]byte{s.sign(t, template, key)}, PrivateKey: key}
}

// FirstVersion returns a client's certificate of version 1, as openssl makes it without a file of extensions.
func (s *Signer) FirstVersion(t *testing.T, name string) *tls.Certificate {
	t.Helper()
	key := require.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	type validity struct{ NotBefore, NotAfter time.Time }
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}}
	subject := pkix.Name{CommonName: name}.ToRDNSequence()
	signed := require.Value(asn1.Marshal(struct {
		Serial    *big.Int
		Algorithm pkix.AlgorithmIdentifier
		Issuer    asn1.RawValue
		Validity  validity
		Subject   pkix.RDNSequence
		Key       asn1.RawValue
	}{
		big.NewInt(1), algorithm, asn1.RawValue{FullBytes: s.cert.RawSubject},
		validity{time.Now().Add(-time.Hour).UTC(), time.Now().Add(time.Hour).UTC()}, subject,
		asn1.RawValue{FullBytes: require.Value(x509.MarshalPKIXPublicKey(key.Public()))(t)},
	}))(t)
	digest := sha256.Sum256(signed)
	signature := require.Value(ecdsa.SignASN1(rand.Reader, s.key, digest[:]))(t)
	der := require.Value(asn1.Marshal(struct {
		Signed    asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: signed}, algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}}))(t)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Template returns a certificate's template for a user with groups.
func Template(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: groups}}
}

// Client returns a client of the target that sends a certificate, or none if it is nil.
func Client(t api.Target, certificate *tls.Certificate) *http.Client {
	config := t.TLS()
	if certificate != nil {
		// The client sends it whatever authorities the server names.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
}

// OverHTTP1 returns such a client that speaks HTTP/1.1.
func OverHTTP1(to api.Target, certificate *tls.Certificate) *http.Client {
	client := Client(to, certificate)
	transport := client.Transport.(*http.Transport)
	transport.ForceAttemptHTTP2 = false
	transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	return client
}
