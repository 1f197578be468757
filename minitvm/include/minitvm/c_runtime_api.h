/* minitvm's functions and tensors for C and C++: DLPack 1.3, TVM's packed calls, and how a function
 * that Python has built is called from C. The pages docs/c.md and docs/interop.md tell more. */
#ifndef MINITVM_C_RUNTIME_API_H_
#define MINITVM_C_RUNTIME_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- DLPack, unless dlpack.h was included before ---------------------------------------------- */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3
#define DLPACK_FLAG_BITMASK_READ_ONLY ((uint64_t)1)
#define DLPACK_FLAG_BITMASK_IS_COPIED ((uint64_t)2)
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED ((uint64_t)4)

typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLOpenCL = 4,
  kDLVulkan = 7,
  kDLMetal = 8,
  kDLVPI = 9,
  kDLROCM = 10,
  kDLROCMHost = 11,
  kDLExtDev = 12,
  kDLCUDAManaged = 13,
  kDLOneAPI = 14,
  kDLWebGPU = 15,
  kDLHexagon = 16,
  kDLMAIA = 17,
  kDLTrn = 18
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e3m4 = 7,
  kDLFloat8_e4m3 = 8,
  kDLFloat8_e4m3b11fnuz = 9,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLFloat8_e8m0fnu = 14,
  kDLFloat6_e2m3fn = 15,
  kDLFloat6_e3m2fn = 16,
  kDLFloat4_e2m1fn = 17
} DLDataTypeCode;

typedef struct {
  uint8_t code;   /* a DLDataTypeCode */
  uint8_t bits;   /* of one lane */
  uint16_t lanes; /* 1 for scalars */
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

#endif /* DLPACK_DLPACK_H_ */

/* ---- Packed calls: the classic C ABI of TVM --------------------------------------------------- */

/* What a TVMValue holds. */
typedef enum {
  kTVMArgInt = 0,
  kTVMArgUInt = 1, /* read as v_int64 */
  kTVMArgFloat = 2,
  kTVMOpaqueHandle = 3,
  kTVMNullptr = 4,
  kTVMDataType = 5,
  kTVMDLDevice = 6,
  kTVMDLTensorHandle = 7,
  kTVMObjectHandle = 8, /* a Python object */
  kTVMModuleHandle = 9,
  kTVMPackedFuncHandle = 10, /* a TVMFunctionHandle */
  kTVMStr = 11,
  kTVMBytes = 12,         /* a TVMByteArray* */
  kTVMNDArrayHandle = 13  /* a DLTensor* */
} TVMArgTypeCode;

typedef union {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
} TVMValue;

typedef struct {
  const char* data;
  size_t size;
} TVMByteArray;

#define TVM_CRT_MAX_ARGS 10

typedef struct {
  TVMValue values[TVM_CRT_MAX_ARGS];
  int tcodes[TVM_CRT_MAX_ARGS];
  uint32_t values_count;
} TVMArgs;

/* The signature of every packed function: 0, or -1 with an error set. */
typedef int (*TVMBackendPackedCFunc)(TVMValue* args, int* type_codes, int num_args, TVMValue* ret,
                                     int* ret_type_code, void* resource);

/* The signature of functions that return by TVMCFuncSetReturn, for programs of classic TVM. */
typedef void* TVMRetValueHandle;
typedef int (*TVMPackedCFunc)(TVMValue* args, int* type_codes, int num_args, TVMRetValueHandle ret,
                              void* resource);

/* What PackedFunc.handle points to, and an argument of kTVMPackedFuncHandle. Its caller holds
 * Python's GIL and passes pointers that are good; the error is a Python exception. */
typedef struct {
  TVMBackendPackedCFunc function;
  void* resource;
} TVMPackedFunction;
typedef TVMPackedFunction* TVMFunctionHandle;

/* ---- Calling what Python has built ------------------------------------------------------------ */

/* What ctypes.byref(f.c_function) points to: valid as long as that object of Python. Any thread may
 * call it, with or without the GIL. */
typedef struct {
  TVMBackendPackedCFunc call; /* with `resource` as its last argument */
  void* resource;
  const char* (*last_error)(void); /* of this thread's last failure; "" before the first */
} MiniTVMFunction;

/* Calls f. `ret` and `ret_type_code` may be NULL. */
static inline int MiniTVMCall(const MiniTVMFunction* f, TVMValue* args, int* type_codes,
                              int num_args, TVMValue* ret, int* ret_type_code) {
  return f->call(args, type_codes, num_args, ret, ret_type_code, f->resource);
}

/* Calls f with the arguments of a TVMArgs, whose count may not exceed TVM_CRT_MAX_ARGS. */
static inline int MiniTVMCallArgs(const MiniTVMFunction* f, TVMArgs* args, TVMValue* ret,
                                  int* ret_type_code) {
  int count = args->values_count > TVM_CRT_MAX_ARGS ? -1 : (int)args->values_count;
  return f->call(args->values, args->tcodes, count, ret, ret_type_code, f->resource);
}

#ifdef __cplusplus
}
#endif

#endif /* MINITVM_C_RUNTIME_API_H_ */
