package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
)

// folder is an S3 server whose objects are files of a folder. It knows nothing of RDMA: bodies are
// bodies, wherever they come from.
type folder struct{ root *os.Root }

const uploads = ".uploads" // has the parts of uploads, each in a folder of its own, and files that are being written

// result is an answer in XML.
type result struct {
	XMLName                           xml.Name
	Bucket, Key, UploadId, ETag       string `xml:",omitempty"`
	Code, Message, LocationConstraint string `xml:",omitempty"`
}

var errDigest = errors.New("the bytes that came have another checksum or length")

func (f folder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	res, err := f.serve(w, r)
	status := http.StatusOK
	if err != nil {
		res, status = result{XMLName: xml.Name{Local: "Error"}, Code: "InternalError", Message: err.Error()}, http.StatusInternalServerError
		switch {
		case errors.Is(err, fs.ErrNotExist):
			res.Code, status = "NoSuchKey", http.StatusNotFound
		case errors.Is(err, errDigest):
			res.Code, status = "BadDigest", http.StatusBadRequest
		case errors.Is(err, errors.ErrUnsupported):
			res.Code, status = "NotImplemented", http.StatusNotImplemented
		}
	}
	if res.XMLName.Local != "" {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		xml.NewEncoder(w).Encode(res)
	}
}

func (f folder) serve(w http.ResponseWriter, r *http.Request) (res result, err error) {
	name, q := path.Clean("/" + r.URL.Path)[1:], r.URL.Query()
	bucket, key, object := strings.Cut(name, "/")
	upload := path.Join(uploads, path.Base("/"+q.Get("uploadId")))
	res.Bucket, res.Key = bucket, key
	switch m := r.Method; {
	case bucket == "" || bucket == uploads:
		err = errors.ErrUnsupported
	case m == http.MethodPut && !object:
		err = f.root.MkdirAll(name, 0o777)
	case m == http.MethodPut && q.Has("uploadId"):
		part, _ := strconv.ParseUint(q.Get("partNumber"), 10, 16)
		err = f.put(w, r, path.Join(upload, fmt.Sprintf("%05d", part)))
	case m == http.MethodPut:
		err = f.put(w, r, name)
	case m == http.MethodPost && q.Has("uploads"):
		res.XMLName.Local, res.UploadId = "InitiateMultipartUploadResult", rand.Text()
		err = f.root.MkdirAll(path.Join(uploads, res.UploadId), 0o777)
	case m == http.MethodPost && q.Has("uploadId"):
		res.XMLName.Local, res.ETag = "CompleteMultipartUploadResult", `"`+path.Base(upload)+`"`
		err = f.complete(upload, name)
	case m == http.MethodDelete && q.Has("uploadId"):
		err = f.root.RemoveAll(upload)
		w.WriteHeader(http.StatusNoContent)
	case (m == http.MethodGet || m == http.MethodHead) && (object || m == http.MethodHead):
		err = f.get(w, r, name)
	default:
		err = errors.ErrUnsupported
	}
	return res, err
}

// put stores a body that has come whole.
func (f folder) put(w http.ResponseWriter, r *http.Request, name string) error {
	ieee, castagnoli := crc32.NewIEEE(), crc32.New(crc32.MakeTable(crc32.Castagnoli))
	err := f.write(name, func(file io.Writer) error {
		n, err := io.Copy(io.MultiWriter(file, ieee, castagnoli), r.Body)
		for header, sum := range map[string]uint32{"X-Amz-Checksum-Crc32": ieee.Sum32(), "X-Amz-Checksum-Crc32c": castagnoli.Sum32()} {
			text := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
			if v := r.Header.Get(header); err == nil && (v != "" && v != text || n != r.ContentLength) {
				err = errDigest
			}
		}
		return err
	})
	w.Header().Set("ETag", fmt.Sprintf(`"%08x"`, castagnoli.Sum32()))
	return err
}

// complete joins the parts of an upload.
func (f folder) complete(upload, name string) error {
	parts, err := fs.ReadDir(f.root.FS(), upload)
	if err != nil {
		return err
	}
	err = f.write(name, func(file io.Writer) error {
		for _, p := range parts {
			part, err := f.root.Open(path.Join(upload, p.Name()))
			if err != nil {
				return err
			}
			_, err = io.Copy(file, part)
			if err := errors.Join(err, part.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, f.root.RemoveAll(upload))
}

// write makes a file, or leaves the old one.
func (f folder) write(name string, fill func(io.Writer) error) error {
	tmp := path.Join(uploads, rand.Text())
	if err := errors.Join(f.root.MkdirAll(uploads, 0o777), f.root.MkdirAll(path.Dir(name), 0o777)); err != nil {
		return err
	}
	file, err := f.root.Create(tmp)
	if err != nil {
		return err
	}
	if err = errors.Join(fill(file), file.Close()); err == nil {
		return f.root.Rename(tmp, name)
	}
	return errors.Join(err, f.root.Remove(tmp))
}

func (f folder) get(w http.ResponseWriter, r *http.Request, name string) error {
	file, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size()))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", info.ModTime(), file)
	}
	return err
}
