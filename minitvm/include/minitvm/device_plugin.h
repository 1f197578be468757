/* What a device in C is written against: the tables of PaddlePaddle's custom devices, by which
 * minitvm.load_device_plugin and PaddlePaddle itself call a library. The page docs/device_plugins.md
 * tells more.
 *
 * The layout of the table is that of PaddlePaddle 3.3; -DMINITVM_PLUGIN_ABI=300 makes it that of
 * 3.0. A source that includes PaddlePaddle's own header, which is C++, needs nothing of this one. */
#ifndef MINITVM_DEVICE_PLUGIN_H_
#define MINITVM_DEVICE_PLUGIN_H_

#include <stddef.h>

#ifndef MINITVM_PLUGIN_ABI
#define MINITVM_PLUGIN_ABI 303
#endif
#if MINITVM_PLUGIN_ABI != 300 && MINITVM_PLUGIN_ABI != 303
#error "expected MINITVM_PLUGIN_ABI to be 300 or 303"
#endif

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif

/* The version of the interface, the same in both layouts. */
#define PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION 0
#define PADDLE_CUSTOM_RUNTIME_MINOR_VERSION 1
#define PADDLE_CUSTOM_RUNTIME_PATCH_VERSION 1

typedef enum {
  C_SUCCESS = 0,
  C_WARNING = 1,       /* done, but not as was asked for */
  C_FAILED = 2,        /* no memory left; for query_*: not done yet */
  C_ERROR = 3,         /* the caller's mistake */
  C_INTERNAL_ERROR = 4 /* the plugin's or the device's */
} C_Status;

typedef struct C_Device_st {
  int id;
}* C_Device;

/* Whatever the plugin makes of them. */
typedef struct C_Stream_st* C_Stream;
typedef struct C_Event_st* C_Event;

typedef void (*C_Callback)(C_Device device, C_Stream stream, void* user_data, C_Status* status);

/* Functions of PaddlePaddle's that minitvm does not call. */
typedef C_Status (*C_NotCalled)(void);

/* The functions of a device. A function that a device lacks is NULL; [r] is required. Sizes are in
 * bytes. A function returns its status, and writes its results through pointers. */
typedef struct C_DeviceInterface {
  size_t size; /* sizeof(C_DeviceInterface), written by the caller of InitPlugin */

  /* ---- Devices: an id is one of get_device_list, until init_device writes another one ---- */
  C_Status (*initialize)(void);
  C_Status (*finalize)(void);
  C_Status (*init_device)(C_Device device);
  C_Status (*set_device)(C_Device device); /* [r] the thread's current device */
  C_Status (*get_device)(C_Device device); /* [r] writes device->id */
  C_Status (*deinit_device)(C_Device device);

  /* ---- Streams and events ---- */
  C_Status (*create_stream)(C_Device device, C_Stream* stream);
  C_Status (*destroy_stream)(C_Device device, C_Stream stream);
  C_Status (*query_stream)(C_Device device, C_Stream stream);
  C_Status (*stream_add_callback)(C_Device device, C_Stream stream, C_Callback callback,
                                  void* user_data);
  C_Status (*create_event)(C_Device device, C_Event* event);                 /* [r] */
  C_Status (*record_event)(C_Device device, C_Stream stream, C_Event event); /* [r] */
  C_Status (*destroy_event)(C_Device device, C_Event event);                 /* [r] */
  C_Status (*query_event)(C_Device device, C_Event event);
  C_Status (*synchronize_device)(C_Device device);
  C_Status (*synchronize_stream)(C_Device device, C_Stream stream);
  C_Status (*synchronize_event)(C_Device device, C_Event event); /* [r] */
  C_Status (*stream_wait_event)(C_Device device, C_Stream stream, C_Event event);
  void* reserved_dev_api[8];

  /* ---- Memory ---- */
  C_Status (*device_memory_allocate)(C_Device device, void** ptr, size_t size);  /* [r] */
  C_Status (*device_memory_deallocate)(C_Device device, void* ptr, size_t size); /* [r] */
  C_Status (*device_memory_set)(C_Device device, void* ptr, unsigned char value, size_t size);
  C_Status (*host_memory_allocate)(C_Device device, void** ptr, size_t size);
  C_Status (*host_memory_deallocate)(C_Device device, void* ptr, size_t size);
  C_Status (*unified_memory_allocate)(C_Device device, void** ptr, size_t size);
  C_Status (*unified_memory_deallocate)(C_Device device, void* ptr, size_t size);
  C_Status (*memory_copy_h2d)(C_Device device, void* dst, const void* src, size_t size);
  C_Status (*memory_copy_d2h)(C_Device device, void* dst, const void* src, size_t size);
  C_Status (*memory_copy_d2d)(C_Device device, void* dst, const void* src, size_t size);
  C_Status (*memory_copy_p2p)(C_Device dst_device, C_Device src_device, void* dst,
                              const void* src, size_t size);
  C_Status (*async_memory_copy_h2d)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size);
  C_Status (*async_memory_copy_d2h)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size);
  C_Status (*async_memory_copy_d2d)(C_Device device, C_Stream stream, void* dst, const void* src,
                                    size_t size);
  C_Status (*async_memory_copy_p2p)(C_Device dst_device, C_Device src_device, C_Stream stream,
                                    void* dst, const void* src, size_t size);
  void* reserved_mem_api[8];

  /* ---- What is known of the devices ---- */
  C_Status (*get_device_count)(size_t* count);  /* [r] */
  C_Status (*get_device_list)(size_t* devices); /* [r] as many ids as get_device_count says */
  C_Status (*device_memory_stats)(C_Device device, size_t* total_memory, size_t* free_memory);
  C_Status (*device_min_chunk_size)(C_Device device, size_t* count);
  C_Status (*device_max_chunk_size)(C_Device device, size_t* count);
  C_Status (*device_max_alloc_size)(C_Device device, size_t* count);
  C_Status (*device_extra_padding_size)(C_Device device, size_t* size);
  C_Status (*device_init_alloc_size)(C_Device device, size_t* size);
  C_Status (*device_realloc_size)(C_Device device, size_t* size);
#if MINITVM_PLUGIN_ABI == 300
  C_Status (*get_compute_capability)(size_t* compute_capability);
  C_Status (*get_runtime_version)(size_t* version);
  C_Status (*get_driver_version)(size_t* version);
#else
  C_Status (*get_compute_capability)(C_Device device, size_t* compute_capability);
  C_NotCalled get_device_properties; /* fills in a class of PaddlePaddle's */
  C_Status (*get_runtime_version)(C_Device device, size_t* version);
  C_Status (*get_driver_version)(C_Device device, size_t* version);
  C_Status (*get_multi_process)(C_Device device, size_t* multi_process);
  C_Status (*get_max_threads_per_mp)(C_Device device, size_t* threads_per_mp);
  C_Status (*get_max_threads_per_block)(C_Device device, size_t* threads_per_block);
  C_NotCalled get_max_grid_dim_size;
  C_Status (*is_float16_supported)(C_Device device, bool* supported);
  C_Status (*is_bfloat16_supported)(C_Device device, bool* supported);
  C_NotCalled is_dnn_supported;
  C_NotCalled init_eigen_device;
  C_NotCalled destroy_eigen_device;
#endif
  void* reserved_info_api[8];

  /* ---- Collectives, profiling, BLAS, graphs ---- */
  C_NotCalled xccl_get_comm_name;
  C_NotCalled xccl_get_unique_id_size;
  C_NotCalled xccl_get_unique_id;
  C_NotCalled xccl_comm_init_rank;
  C_NotCalled xccl_destroy_comm;
  C_NotCalled xccl_all_reduce;
  C_NotCalled xccl_broadcast;
  C_NotCalled xccl_reduce;
  C_NotCalled xccl_all_gather;
  C_NotCalled xccl_reduce_scatter;
  C_NotCalled xccl_group_start;
  C_NotCalled xccl_group_end;
  C_NotCalled xccl_send;
  C_NotCalled xccl_recv;
  C_NotCalled xccl_all_to_all;
  void* reserved_ccl_api[8];
  C_NotCalled profiler_initialize;
  C_NotCalled profiler_finalize;
  C_NotCalled profiler_prepare_tracing;
  C_NotCalled profiler_start_tracing;
  C_NotCalled profiler_stop_tracing;
  C_NotCalled profiler_collect_trace_data;
  void* reserved_profiler_api[8];
#if MINITVM_PLUGIN_ABI == 303
  C_NotCalled init_blas_handle;
  C_NotCalled blas_set_math_mode;
  C_NotCalled init_blaslt_handle;
  C_NotCalled destroy_blas_handle;
  C_NotCalled destroy_blaslt_handle;
  C_NotCalled cuda_stream_begin_capture;
  C_NotCalled cuda_stream_end_captrue;
  C_NotCalled cuda_graph_launch;
  C_NotCalled cuda_graph_destroy;
  C_NotCalled cuda_graph_exec_destroy;
  C_NotCalled cuda_graph_instantiate;
  C_NotCalled cuda_graph_get_nodes;
  C_NotCalled cuda_stream_capture_info;
  C_NotCalled get_parameter_setter_for_exec_graph;
  C_NotCalled cuda_graph_debug_dot_print;
  C_NotCalled cuda_thread_exchange_stream_capthure_mode;
#endif
  C_NotCalled blas_axpby;
  void* reserved_other_api[7];
} C_DeviceInterface;

typedef struct CustomRuntimeVersion {
  size_t major, minor, patch;
} CustomRuntimeVersion;

typedef struct CustomRuntimeParams {
  size_t size;                  /* sizeof(CustomRuntimeParams), written by the caller */
  C_DeviceInterface* interface; /* the caller's, all zeros but for its size: fill it in */
  CustomRuntimeVersion version; /* at least 0.1.1 */
  char* device_type;            /* the name of the devices; stays the plugin's */
  char* sub_device_type;
  void* pir_default_passes;
  char reserved[32];
} CustomRuntimeParams;

#define MINITVM_PLUGIN_HOLDS(name, condition) typedef char name[(condition) ? 1 : -1]
#define MINITVM_PLUGIN_OFFSET(field, offset) \
  MINITVM_PLUGIN_HOLDS(minitvm_plugin_offset_of_##field, \
                       offsetof(C_DeviceInterface, field) == (offset))

MINITVM_PLUGIN_OFFSET(initialize, 8);
MINITVM_PLUGIN_OFFSET(create_stream, 56);
MINITVM_PLUGIN_OFFSET(stream_wait_event, 144);
MINITVM_PLUGIN_OFFSET(device_memory_allocate, 216);
MINITVM_PLUGIN_OFFSET(memory_copy_h2d, 272);
MINITVM_PLUGIN_OFFSET(async_memory_copy_p2p, 328);
MINITVM_PLUGIN_OFFSET(get_device_count, 400);
MINITVM_PLUGIN_OFFSET(get_compute_capability, 472);
#if MINITVM_PLUGIN_ABI == 300
MINITVM_PLUGIN_OFFSET(get_runtime_version, 480);
MINITVM_PLUGIN_OFFSET(xccl_get_comm_name, 560);
MINITVM_PLUGIN_OFFSET(profiler_initialize, 744);
MINITVM_PLUGIN_OFFSET(blas_axpby, 856);
MINITVM_PLUGIN_HOLDS(minitvm_plugin_table_size, sizeof(C_DeviceInterface) == 920);
#else
MINITVM_PLUGIN_OFFSET(get_runtime_version, 488);
MINITVM_PLUGIN_OFFSET(xccl_get_comm_name, 640);
MINITVM_PLUGIN_OFFSET(profiler_initialize, 824);
MINITVM_PLUGIN_OFFSET(blas_axpby, 1064);
MINITVM_PLUGIN_HOLDS(minitvm_plugin_table_size, sizeof(C_DeviceInterface) == 1128);
#endif
MINITVM_PLUGIN_HOLDS(minitvm_plugin_params_size, sizeof(CustomRuntimeParams) == 96);

/* The first statement of InitPlugin: it returns where the caller's table is not of this layout, and
 * tells the version otherwise. */
#define PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params)                    \
  if ((params)->interface->size != sizeof(C_DeviceInterface)) {        \
    return;                                                            \
  }                                                                    \
  (params)->version.major = PADDLE_CUSTOM_RUNTIME_MAJOR_VERSION;       \
  (params)->version.minor = PADDLE_CUSTOM_RUNTIME_MINOR_VERSION;       \
  (params)->version.patch = PADDLE_CUSTOM_RUNTIME_PATCH_VERSION

/* What a plugin exports. */
void InitPlugin(CustomRuntimeParams* params);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MINITVM_DEVICE_PLUGIN_H_ */
