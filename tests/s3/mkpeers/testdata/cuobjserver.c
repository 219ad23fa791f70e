// In place of versitygw's wrapper of NVIDIA's libcuobjserver, which is closed: there is no server,
// so vgwrdma moves objects by hipobj-rc-v2 only.
#include "cuobjserver_wrapper.h"

cuobj_server_t *cuobj_server_create(const char *ip, unsigned short port, unsigned proto) { return NULL; }
cuobj_server_t *cuobj_server_create_with_config(const char *ip, unsigned short port, unsigned proto, const cuobj_rdma_tunables_t *t) { return NULL; }
void cuobj_server_destroy(cuobj_server_t *s) {}
int cuobj_server_start_session(cuobj_server_t *s) { return CUOBJ_FAIL; }
void cuobj_server_close_session(cuobj_server_t *s) {}
int cuobj_server_is_connected(cuobj_server_t *s) { return 0; }
int cuobj_server_init_rdma_config(cuobj_server_t *s, const cuobj_rdma_tunables_t *t) { return CUOBJ_FAIL; }
void *cuobj_server_alloc_host_buffer(cuobj_server_t *s, size_t n) { return NULL; }
void cuobj_server_free_host_buffer(void *p) {}
cuobj_rdma_buffer_t *cuobj_server_register_buffer(cuobj_server_t *s, void *p, size_t n) { return NULL; }
void cuobj_server_deregister_buffer(cuobj_server_t *s, cuobj_rdma_buffer_t *b) {}
uint16_t cuobj_server_allocate_channel(cuobj_server_t *s) { return 0; }
void cuobj_server_free_channel(cuobj_server_t *s, uint16_t c) {}
ssize_t cuobj_server_handle_get(cuobj_server_t *s, const char *key, cuobj_rdma_buffer_t *b, uint64_t start, size_t n, const char *descr, uint16_t c) { return -1; }
ssize_t cuobj_server_handle_put(cuobj_server_t *s, const char *key, cuobj_rdma_buffer_t *b, uint64_t start, size_t n, const char *descr, uint16_t c) { return -1; }
void cuobj_server_setup_telemetry(int otel) {}
void cuobj_server_shutdown_telemetry(void) {}
void cuobj_server_set_telem_flags(unsigned flags) {}
