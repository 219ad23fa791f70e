//go:build linux

package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/crypto/bcrypt"

	"github.com/goverbs/verbs/internal/labtest"
)

var address = regexp.MustCompile(`address=(\S+)`)

// start runs the program until the test ends, and returns its address.
func start(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer w.Close()
		ended <- run(ctx, append([]string{"--web.listen-address=127.0.0.1:0"}, args...), io.Discard, w)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ends with %v", err)
		}
	})
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			go io.Copy(io.Discard, r)
			return m[1]
		}
	}
	t.Fatalf("it does not listen: %v", <-ended)
	return ""
}

// certificate makes a certificate for 127.0.0.1 in files, and returns a pool that trusts it.
func certificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key := labtest.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert := labtest.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	write := func(file, typ string, b []byte) {
		labtest.Check(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: b}), 0o600))
	}
	write(certFile, "CERTIFICATE", cert)
	write(keyFile, "PRIVATE KEY", labtest.Must(x509.MarshalPKCS8PrivateKey(key))(t))
	pool := x509.NewCertPool()
	pool.AddCert(labtest.Must(x509.ParseCertificate(cert))(t))
	return pool
}

// TestWebConfig scrapes over TLS, with basic authentication and gzip.
func TestWebConfig(t *testing.T) {
	labtest.Require(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "web.yml")
	pool := certificate(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	hash := labtest.Must(bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost))(t)
	labtest.Check(t, os.WriteFile(config, fmt.Appendf(nil, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\nbasic_auth_users: {prometheus: '%s'}\n", hash), 0o600))
	addr := start(t, "--web.config.file="+config)

	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableCompression: true}}
	defer client.CloseIdleConnections()
	get := func(path, password string) (*http.Response, io.Reader) {
		t.Helper()
		req := labtest.Must(http.NewRequestWithContext(t.Context(), "GET", "https://"+addr+path, nil))(t)
		req.Header.Set("Accept-Encoding", "gzip")
		req.SetBasicAuth("prometheus", password)
		resp := labtest.Must(client.Do(req))(t)
		t.Cleanup(func() { resp.Body.Close() })
		if resp.Header.Get("Content-Encoding") == "gzip" {
			return resp, labtest.Must(gzip.NewReader(resp.Body))(t)
		}
		return resp, resp.Body
	}
	if resp, _ := get("/metrics", "wrong"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("with a wrong password: %s", resp.Status)
	}
	resp, body := get("/metrics", "secret")
	if resp.StatusCode != http.StatusOK || resp.TLS == nil || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%s, %v", resp.Status, resp.Header)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families := labtest.Must(parser.TextToMetricFamilies(body))(t)
	for _, name := range []string{"rdma_build_info", "rdma_devices", "node_infiniband_state_id", "go_goroutines", "process_start_time_seconds", "promhttp_metric_handler_errors_total"} {
		if len(families[name].GetMetric()) == 0 {
			t.Errorf("there is no %s", name)
		}
	}
	if _, body := get("/", "secret"); !strings.Contains(string(labtest.Must(io.ReadAll(body))(t)), `href="/metrics"`) {
		t.Error("the first page does not lead to the metrics")
	}
	if resp, err := http.Get("http://" + addr + "/metrics"); err == nil {
		if resp.Body.Close(); resp.StatusCode == http.StatusOK {
			t.Error("it answers without TLS")
		}
	}
}

// TestOnce prints the metrics of selected devices of a host's sysfs.
func TestOnce(t *testing.T) {
	sys := t.TempDir()
	for _, name := range []string{"mlx5_0", "mlx5_1", "mlx5_10"} {
		dir := filepath.Join(sys, "class/infiniband", name, "ports/1")
		labtest.Check(t, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "state"), []byte("4: ACTIVE\n"), 0o644))
	}
	bad := filepath.Join(sys, "class/infiniband/mlx5_10/ports/1/hw_counters")
	labtest.Check(t, os.MkdirAll(bad, 0o755), os.WriteFile(filepath.Join(bad, "rx_bad"), []byte("none\n"), 0o644))
	var b, log strings.Builder
	labtest.Check(t, run(t.Context(), []string{"--once", "--path.sysfs=" + sys, "--device.include=mlx5_.*", "--device.exclude=mlx5_1"}, &b, &log))
	if !strings.Contains(log.String(), "rx_bad") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("what cannot be read is not in the log: %q", &log)
	}
	text := b.String()
	if !strings.Contains(text, "\nrdma_devices 2\n") || !strings.Contains(text, `{device="mlx5_10",port="1"} 4`) || strings.Contains(text, `"mlx5_1"`) || strings.Contains(text, "go_") {
		t.Error(text)
	}
	b.Reset()
	labtest.Check(t, run(t.Context(), []string{"--once", "--path.sysfs=" + sys, `--device.include=\Qmlx5_1`}, &b, t.Output()))
	if text := b.String(); !strings.Contains(text, "\nrdma_devices 1\n") || !strings.Contains(text, `"mlx5_1"`) {
		t.Error(text)
	}
}

// TestMistakes: mistakes end the program with a reason.
func TestMistakes(t *testing.T) {
	for _, args := range [][]string{{"--nothing"}, {"--device.include=("}, {"--web.config.file=/nonexistent", "--web.listen-address=127.0.0.1:0"}, {"--web.listen-address=256.0.0.1:1"}} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
