//go:build linux

package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/verbs/lab/debian"
)

// unpackImage writes the kernel that an image for amd64 (bzImage) holds: an emulated processor
// takes seconds to unpack it at each boot. QEMU starts it at its entry point for PVH.
// Documentation/arch/x86/boot.rst describes the image's header.
func unpackImage(ctx context.Context, image, file string) error {
	b, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	const sector, setupSectors, payload = 512, 0x1f1, 0x248
	if len(b) < payload+8 || string(b[0x202:0x206]) != "HdrS" {
		return fmt.Errorf("%s is no bzImage", image)
	}
	from := (int64(b[setupSectors])+1)*sector + int64(binary.LittleEndian.Uint32(b[payload:]))
	size := int64(binary.LittleEndian.Uint32(b[payload+4:])) - 4 // the end is the kernel's size
	if size < 0 || from+size > int64(len(b)) {
		return fmt.Errorf("%s is truncated", image)
	}
	packed := b[from:][:size]
	ext := ".zst"
	if bytes.HasPrefix(packed, []byte("\xfd7zXZ")) {
		ext = ".xz"
	}
	return decompressTo(ctx, file, ext, bytes.NewReader(packed))
}

// unpackModules decompresses module files that are loaded at each boot, relative to k.Modules. If it was
// interrupted, modules.dep names files that are decompressed already.
func (k Kernel) unpackModules(ctx context.Context, files []string) error {
	for _, name := range files {
		if !packed(name) {
			continue
		}
		ext := filepath.Ext(name)
		file := filepath.Join(k.Modules, name)
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) && Exist(strings.TrimSuffix(file, ext)) {
			continue
		} else if err != nil {
			return err
		}
		err = decompressTo(ctx, strings.TrimSuffix(file, ext), ext, f)
		f.Close()
		if err == nil {
			err = os.Remove(file)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// UnpackLater decompresses the files of modules of a kernel that has been prepared, if need be.
func (k Kernel) UnpackLater(ctx context.Context, names []string) error {
	unlock, err := debian.Lock(ctx, k.Root+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	files, err := k.ModuleFiles(names...)
	if err != nil || !slices.ContainsFunc(files, packed) {
		return err
	}
	if err := k.unpackModules(ctx, files); err != nil {
		return err
	}
	return k.depmod(ctx)
}

// decompressTo writes decompressed data to a file, which exists only when it is complete.
func decompressTo(ctx context.Context, file, ext string, data io.Reader) error {
	part := file + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	err = debian.Decompress(ctx, ext, data, func(r io.Reader) error {
		_, err := io.Copy(f, r)
		return err
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("unpack %s: %w", file, err)
	}
	return os.Rename(part, file)
}
