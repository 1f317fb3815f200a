// Command lab-pki makes the keys and certificates of one lab cluster, with the standard library alone.
//
// It reads a JSON list of certificates on standard input and writes NAME.crt and NAME.key for each into the folder
// that is its only argument, all signed by a new authority in ca.crt and ca.key. An entry without a common name gets
// a key pair (NAME.key, NAME.pub) and no certificate. Files are readable by their owner alone.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

type request struct {
	Name         string   `json:"name"`
	CommonName   string   `json:"common_name"`
	Organization []string `json:"organization"`
	Hosts        []string `json:"hosts"`
}

const lifetime = 10 * 365 * 24 * time.Hour

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "lab-pki:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: lab-pki FOLDER < requests.json")
	}
	folder := os.Args[1]
	var requests []request
	if err := json.NewDecoder(os.Stdin).Decode(&requests); err != nil {
		return fmt.Errorf("reading the requests: %w", err)
	}
	authorityKey, err := newKey(folder, "ca")
	if err != nil {
		return err
	}
	authority := template("kgpu-lab-ca", nil)
	authority.IsCA, authority.BasicConstraintsValid = true, true
	authority.KeyUsage |= x509.KeyUsageCertSign
	if err := sign(folder, "ca", authority, authority, authorityKey, authorityKey); err != nil {
		return err
	}
	for _, wanted := range requests {
		key, err := newKey(folder, wanted.Name)
		if err != nil {
			return err
		}
		if wanted.CommonName == "" {
			if err := writePublic(folder, wanted.Name, key); err != nil {
				return err
			}
			continue
		}
		leaf := template(wanted.CommonName, wanted.Organization)
		leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if len(wanted.Hosts) > 0 {
			leaf.ExtKeyUsage = append(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		}
		for _, host := range wanted.Hosts {
			if address := net.ParseIP(host); address != nil {
				leaf.IPAddresses = append(leaf.IPAddresses, address)
			} else {
				leaf.DNSNames = append(leaf.DNSNames, host)
			}
		}
		if err := sign(folder, wanted.Name, leaf, authority, key, authorityKey); err != nil {
			return err
		}
	}
	return nil
}

func template(name string, organization []string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err)
	}
	// An hour back, so that a clock that is set a little back does not make the certificates invalid.
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: organization},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func newKey(folder, name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, write(folder, name+".key", "EC PRIVATE KEY", raw)
}

func writePublic(folder, name string, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return write(folder, name+".pub", "PUBLIC KEY", raw)
}

func sign(folder, name string, leaf, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) error {
	raw, err := x509.CreateCertificate(rand.Reader, leaf, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("signing %s: %w", name, err)
	}
	return write(folder, name+".crt", "CERTIFICATE", raw)
}

func write(folder, name, kind string, raw []byte) error {
	block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
	return os.WriteFile(filepath.Join(folder, name), block, 0o600)
}
