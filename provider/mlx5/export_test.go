package mlx5

// NewDriver returns a driver whose contexts have registers that the kernel hands out, or CQEs of a
// size.
func NewDriver(static bool, cqeSize int) Driver { return Driver{static, cqeSize} }
