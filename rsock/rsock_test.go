package rsock_test

import "context"

var ctx = context.Background()
