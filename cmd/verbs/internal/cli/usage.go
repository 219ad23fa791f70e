package cli

// UsageError is a mistake in the command line that only the command itself can find.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

func (e *UsageError) Unwrap() error { return e.Err }

// Usage makes err a [UsageError], unless it is nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{err}
}
