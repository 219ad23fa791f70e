package abicheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/btf"
)

// modules lists the modules that have the structures, unless they are built in.
var modules = []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe", "siw", "mlx5_ib", "erdma"}

// Kernel has the types of the running kernel.
type Kernel struct {
	// Absent lists modules that are not loaded, or are built in.
	Absent []string
	specs  []*btf.Spec
}

// Open reads the running kernel's BTF. It fails with an error that wraps
// errors.ErrUnsupported if the kernel has none.
func Open() (*Kernel, error) {
	const dir = "/sys/kernel/btf"
	f, err := os.Open(filepath.Join(dir, "vmlinux"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the kernel's types: %w: it has no BTF (CONFIG_DEBUG_INFO_BTF): %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	base, err := btf.LoadSpecFromReader(f)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	k := &Kernel{specs: []*btf.Spec{base}}
	for _, module := range modules {
		f, err := os.Open(filepath.Join(dir, module))
		if errors.Is(err, fs.ErrNotExist) {
			k.Absent = append(k.Absent, module)
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := btf.LoadSplitSpecFromReader(f, base)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read the types of module %s: %w", module, err)
		}
		k.specs = append(k.specs, s)
	}
	return k, nil
}

// find returns the kernel's type of that name, or nil if it has none.
func (k *Kernel) find(kind, tag string) btf.Type {
	for _, s := range k.specs {
		types, _ := s.AnyTypesByName(tag)
		for _, t := range types {
			switch t.(type) {
			case *btf.Struct:
				if kind == "struct" {
					return t
				}
			case *btf.Union:
				if kind == "union" {
					return t
				}
			}
		}
	}
	return nil
}
