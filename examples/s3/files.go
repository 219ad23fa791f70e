package main

import (
	"cmp"
	"crypto/rand"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

const uploads = ".uploads" // has the parts of uploads, each in a folder of its own, and files that are being written

// uploadOf returns the folder of an upload.
func uploadOf(r *http.Request) string {
	return path.Join(uploads, "of "+path.Base("/"+r.URL.Query().Get("uploadId")))
}

// part returns the file of a part.
func part(r *http.Request) string {
	n, _ := strconv.ParseUint(r.URL.Query().Get("partNumber"), 10, 16)
	return path.Join(uploadOf(r), fmt.Sprintf("%05d", n))
}

// write makes a file, or leaves the old one.
func (f folder) write(w http.ResponseWriter, name string, fill func(io.Writer) error) error {
	tmp := path.Join(uploads, rand.Text())
	if err := errors.Join(f.MkdirAll(uploads, 0o777), f.MkdirAll(path.Dir(name), 0o777)); err != nil {
		return err
	}
	file, err := f.Create(tmp)
	if err != nil {
		return err
	}
	err = fill(file)
	info, e := file.Stat()
	if err = cmp.Or(err, e, file.Close()); err != nil {
		return errors.Join(err, f.Remove(tmp))
	}
	w.Header().Set("ETag", etag(info))
	if err := f.Rename(tmp, name); err != nil {
		return errors.Join(err, f.Remove(tmp))
	}
	return nil
}

func object(r *http.Request) string { return r.PathValue("bucket") + "/" + r.PathValue("key") }

func etag(info fs.FileInfo) string {
	return fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size())
}

// upload begins an upload in parts, or joins the parts of one.
func (f folder) upload(w http.ResponseWriter, r *http.Request) error {
	res := result{Bucket: r.PathValue("bucket"), Key: r.PathValue("key")}
	if r.URL.Query().Has("uploads") {
		res.XMLName.Local, res.UploadId = "InitiateMultipartUploadResult", rand.Text()
		if err := f.MkdirAll(path.Join(uploads, "of "+res.UploadId), 0o777); err != nil {
			return err
		}
		return res.send(w, http.StatusOK)
	}
	parts, err := fs.ReadDir(f.FS(), uploadOf(r))
	if err != nil {
		return err
	}
	err = f.write(w, object(r), func(file io.Writer) error {
		for _, p := range parts {
			part, err := f.Open(path.Join(uploadOf(r), p.Name()))
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
	if err != nil { // the parts stay, for another attempt
		return err
	}
	if err := f.RemoveAll(uploadOf(r)); err != nil {
		return err
	}
	res.XMLName.Local, res.ETag = "CompleteMultipartUploadResult", w.Header().Get("ETag")
	return res.send(w, http.StatusOK)
}

// abort forgets an upload. Objects stay.
func (f folder) abort(w http.ResponseWriter, r *http.Request) error {
	if !r.URL.Query().Has("uploadId") {
		return errors.ErrUnsupported
	}
	err := f.RemoveAll(uploadOf(r))
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// handler is one that may fail.
type handler func(http.ResponseWriter, *http.Request) error

var errDigest = errors.New("the bytes that came have another checksum or length")

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := errors.ErrUnsupported
	if !strings.HasPrefix(r.PathValue("bucket"), ".") { // as that of the uploads does
		err = h(w, r)
	}
	if err != nil {
		fail(w, err)
	}
}

// fail answers an error.
func fail(w http.ResponseWriter, err error) {
	res, status := result{XMLName: xml.Name{Local: "Error"}, Code: "InternalError", Message: err.Error()}, http.StatusInternalServerError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		res.Code, status = "NoSuchKey", http.StatusNotFound
	case errors.Is(err, errDigest):
		res.Code, status = "BadDigest", http.StatusBadRequest
	case errors.Is(err, errSignature):
		res.Code, status = "SignatureDoesNotMatch", http.StatusForbidden
	case errors.Is(err, errors.ErrUnsupported):
		res.Code, status = "NotImplemented", http.StatusNotImplemented
	}
	res.send(w, status)
}

// result is an answer in XML.
type result struct {
	XMLName                     xml.Name
	Bucket, Key, UploadId, ETag string `xml:",omitempty"`
	Code, Message               string `xml:",omitempty"`
}

func (res result) send(w http.ResponseWriter, status int) error {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	return xml.NewEncoder(w).Encode(res)
}
