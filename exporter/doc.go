// Package exporter has collectors for Prometheus: of the RDMA devices of a machine
// ([NewDeviceCollector]), and of the connections of a program ([NewCollector]). The program
// cmd/verbs-exporter serves the former. docs/prometheus.md lists all metrics.
//
// It is a module of its own, so that programs without Prometheus need none of its libraries.
package exporter
