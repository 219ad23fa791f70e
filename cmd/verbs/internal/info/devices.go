package info

import "github.com/goverbs/verbs/uverbs"

// devicesAt returns the device that spec describes, see [uverbs.Find], or all if it is
// empty. It is an error if there are none.
func devicesAt(spec string) ([]uverbs.Device, error) {
	if spec == "" {
		devs, err := uverbs.Devices()
		if err != nil || len(devs) > 0 {
			return devs, err
		}
	}
	d, err := uverbs.Find(spec)
	if err != nil {
		return nil, err
	}
	return []uverbs.Device{d}, nil
}
