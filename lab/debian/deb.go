package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
)

// unpackDeb unpacks the files of a package into a folder, which it makes if needed. Owners are
// ignored.
func unpackDeb(ctx context.Context, deb io.ReaderAt, dir string) error {
	data, name, err := debData(deb)
	if err != nil {
		return err
	}
	return unpackTar(ctx, strings.TrimPrefix(name, "data.tar"), data, dir)
}

// unpackTar unpacks a compressed archive into a folder, which it makes if needed.
func unpackTar(ctx context.Context, ext string, data io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return Decompress(ctx, ext, data, func(r io.Reader) error { return untar(root, r) })
}

// Decompress calls use with decompressed data. ext is the extension of a compressed file's name.
func Decompress(ctx context.Context, ext string, data io.Reader, use func(io.Reader) error) error {
	switch ext {
	case "":
		return use(data)
	case ".gz":
		z, err := gzip.NewReader(data)
		if err != nil {
			return err
		}
		return use(z)
	case ".xz", ".zst":
		// These programs are several times faster than decompressors in Go.
		tool := map[string]string{".xz": "xz", ".zst": "zstd"}[ext]
		cmd := exec.CommandContext(ctx, tool, "-dc")
		var stderr bytes.Buffer
		cmd.Stdin, cmd.Stderr = data, &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		err = use(out)
		if err == nil {
			_, err = io.Copy(io.Discard, out)
		} else {
			cmd.Process.Kill()
		}
		if werr := cmd.Wait(); err == nil && werr != nil {
			err = fmt.Errorf("%s: %w: %s", tool, werr, bytes.TrimSpace(stderr.Bytes()))
		}
		return err
	}
	return fmt.Errorf("unknown compression %q", ext)
}

// debData finds the member with the files in an ar(5) archive.
func debData(deb io.ReaderAt) (data io.Reader, name string, err error) {
	const magic, headerSize = "!<arch>\n", 60
	var head [headerSize]byte
	if _, err := deb.ReadAt(head[:len(magic)], 0); err != nil || string(head[:len(magic)]) != magic {
		return nil, "", errors.New("not a package")
	}
	for at := int64(len(magic)); ; {
		if _, err := deb.ReadAt(head[:], at); err != nil {
			return nil, "", fmt.Errorf("package without data: %w", err)
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(head[48:58])), 10, 64)
		if err != nil || size < 0 {
			return nil, "", fmt.Errorf("damaged package: size %q", head[48:58])
		}
		at += headerSize
		if name := strings.TrimRight(string(head[:16]), " /"); strings.HasPrefix(name, "data.tar") {
			return io.NewSectionReader(deb, at, size), name, nil
		}
		at += (size + 1) &^ 1
	}
}

// untar unpacks files below root. Folders that exist stay, also if they are links to folders.
func untar(root *os.Root, r io.Reader) error {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackFile(root, h, t); err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
	}
}

func unpackFile(root *os.Root, h *tar.Header, content io.Reader) error {
	name := path.Clean(strings.TrimPrefix(h.Name, "/"))
	if name == "." {
		return nil
	}
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag == tar.TypeDir {
		if fi, err := root.Stat(name); err == nil && fi.IsDir() {
			return nil
		}
		return root.MkdirAll(name, mode|0o700)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if fi, err := root.Lstat(name); err == nil {
		if fi.IsDir() {
			return nil // in packages of a later release, a link replaces this folder
		}
		if err := root.Remove(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(h.Linkname), name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		err = errors.Join(err, f.Chmod(mode), f.Close())
		if err == nil {
			err = root.Chtimes(name, h.ModTime, h.ModTime) // make compares them
		}
		return err
	}
	return nil // a device, which this user may not make
}
