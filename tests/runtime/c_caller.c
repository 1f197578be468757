/* What test_c_function.py compiles: calls from C of functions that Python has built. It includes no
 * header of Python's. */
#include <minitvm/c_runtime_api.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

/* ---- The header's numbers, to compare ---- */
#define NUMBER(value) {#value, (long)(value)}
const struct { const char* name; long value; } numbers[] = {
  NUMBER(sizeof(DLDevice)), NUMBER(sizeof(DLDataType)), NUMBER(sizeof(DLTensor)),
  NUMBER(sizeof(DLManagedTensor)), NUMBER(sizeof(DLManagedTensorVersioned)),
  NUMBER(sizeof(DLPackVersion)), NUMBER(sizeof(TVMValue)), NUMBER(sizeof(TVMArgs)),
  NUMBER(sizeof(TVMByteArray)), NUMBER(sizeof(MiniTVMFunction)), NUMBER(sizeof(TVMPackedFunction)),
  NUMBER(offsetof(DLTensor, data)), NUMBER(offsetof(DLTensor, device)),
  NUMBER(offsetof(DLTensor, ndim)), NUMBER(offsetof(DLTensor, dtype)),
  NUMBER(offsetof(DLTensor, shape)), NUMBER(offsetof(DLTensor, strides)),
  NUMBER(offsetof(DLTensor, byte_offset)), NUMBER(offsetof(DLManagedTensor, manager_ctx)),
  NUMBER(offsetof(DLManagedTensor, deleter)),
  NUMBER(offsetof(DLManagedTensorVersioned, manager_ctx)),
  NUMBER(offsetof(DLManagedTensorVersioned, deleter)),
  NUMBER(offsetof(DLManagedTensorVersioned, flags)),
  NUMBER(offsetof(DLManagedTensorVersioned, dl_tensor)),
  NUMBER(offsetof(TVMArgs, values)), NUMBER(offsetof(TVMArgs, tcodes)),
  NUMBER(offsetof(TVMArgs, values_count)),
  NUMBER(kDLCPU), NUMBER(kDLCUDA), NUMBER(kDLCUDAHost), NUMBER(kDLOpenCL), NUMBER(kDLVulkan),
  NUMBER(kDLMetal), NUMBER(kDLVPI), NUMBER(kDLROCM), NUMBER(kDLROCMHost), NUMBER(kDLExtDev),
  NUMBER(kDLCUDAManaged), NUMBER(kDLOneAPI), NUMBER(kDLWebGPU), NUMBER(kDLHexagon),
  NUMBER(kDLMAIA), NUMBER(kDLTrn),
  NUMBER(kDLInt), NUMBER(kDLUInt), NUMBER(kDLFloat), NUMBER(kDLOpaqueHandle), NUMBER(kDLBfloat),
  NUMBER(kDLComplex), NUMBER(kDLBool), NUMBER(kDLFloat8_e3m4), NUMBER(kDLFloat8_e4m3),
  NUMBER(kDLFloat8_e4m3b11fnuz), NUMBER(kDLFloat8_e4m3fn), NUMBER(kDLFloat8_e4m3fnuz),
  NUMBER(kDLFloat8_e5m2), NUMBER(kDLFloat8_e5m2fnuz), NUMBER(kDLFloat8_e8m0fnu),
  NUMBER(kDLFloat6_e2m3fn), NUMBER(kDLFloat6_e3m2fn), NUMBER(kDLFloat4_e2m1fn),
  NUMBER(kTVMArgInt), NUMBER(kTVMArgUInt), NUMBER(kTVMArgFloat), NUMBER(kTVMOpaqueHandle),
  NUMBER(kTVMNullptr), NUMBER(kTVMDataType), NUMBER(kTVMDLDevice), NUMBER(kTVMDLTensorHandle),
  NUMBER(kTVMObjectHandle), NUMBER(kTVMModuleHandle), NUMBER(kTVMPackedFuncHandle),
  NUMBER(kTVMStr), NUMBER(kTVMBytes), NUMBER(kTVMNDArrayHandle), NUMBER(TVM_CRT_MAX_ARGS),
  {NULL, 0}
};

/* ---- z = x * y, matrices of n x n floats, with whatever damage a test asks for ---- */
typedef enum {
  NO_DAMAGE, TOO_FEW, TOO_MANY, NEGATIVE_COUNT, NO_ARGS, NO_CODES, NO_RESULTS, CODE_INT, CODE_FLOAT,
  CODE_STR, CODE_UNKNOWN, CODE_NEGATIVE, NULL_TENSOR, NULL_DATA, NULL_SHAPE, NULL_STRIDES,
  NEGATIVE_NDIM, OTHER_NDIM, OTHER_DTYPE, OTHER_DEVICE, OTHER_SHAPE, NEGATIVE_SHAPE, TRANSPOSED,
  ODD_ADDRESS, OFFSET, OVERLAP
} Damage;

static DLTensor matrix(float* data, int64_t* shape, int64_t* strides) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 2;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  tensor.strides = strides;
  return tensor;
}

int multiply(const MiniTVMFunction* f, float* x, float* y, float* z, int64_t n, Damage damage,
             int64_t* written_value, int* written_code, char* message, size_t room) {
  int64_t shape[2] = {n, n}, strides[2] = {n, 1}, other[2] = {n, n + 1}, below[2] = {n, -1};
  int64_t across[2] = {1, n};
  DLTensor X = matrix(x, shape, strides), Y = matrix(y, shape, strides);
  DLTensor Z = matrix(z, shape, strides);
  TVMArgs args;
  TVMValue result;
  int code = 99, status;
  memset(&args, 0, sizeof args);
  args.values[0].v_handle = &X;
  args.values[1].v_handle = &Y;
  args.values[2].v_handle = &Z;
  args.tcodes[0] = args.tcodes[1] = args.tcodes[2] = kTVMDLTensorHandle;
  args.values_count = 3;
  result.v_int64 = 99;
  switch (damage) {
    case TOO_FEW: args.values_count = 2; break;
    case TOO_MANY: args.values_count = 11; break;
    case CODE_INT: args.tcodes[1] = kTVMArgInt; break;
    case CODE_FLOAT: args.tcodes[1] = kTVMArgFloat; break;
    case CODE_STR: args.tcodes[1] = kTVMStr; args.values[1].v_str = "y"; break;
    case CODE_UNKNOWN: args.tcodes[1] = 77; break;
    case CODE_NEGATIVE: args.tcodes[1] = -1; break;
    case NULL_TENSOR: args.values[1].v_handle = NULL; break;
    case NULL_DATA: Y.data = NULL; break;
    case NULL_SHAPE: Y.shape = NULL; break;
    case NULL_STRIDES: X.strides = Y.strides = Z.strides = NULL; break;
    case NEGATIVE_NDIM: Y.ndim = -2; Y.shape = NULL; break;
    case OTHER_NDIM: Y.ndim = 1; break;
    case OTHER_DTYPE: Y.dtype.bits = 64; break;
    case OTHER_DEVICE: Y.device.device_type = kDLCUDA; break;
    case OTHER_SHAPE: Y.shape = other; break;
    case NEGATIVE_SHAPE: X.shape = below; break;
    case TRANSPOSED: Y.strides = across; break;
    case ODD_ADDRESS: Y.data = (char*)y + 1; break;
    case OFFSET: Y.data = (char*)y - 64; Y.byte_offset = 64; break;
    case OVERLAP: Z.data = x; break;
    default: break;
  }
  if (damage == NO_ARGS) {
    status = MiniTVMCall(f, NULL, args.tcodes, 3, &result, &code);
  } else if (damage == NO_CODES) {
    status = MiniTVMCall(f, args.values, NULL, 3, &result, &code);
  } else if (damage == NEGATIVE_COUNT) {
    status = MiniTVMCall(f, args.values, args.tcodes, -3, &result, &code);
  } else if (damage == NO_RESULTS) {
    status = MiniTVMCallArgs(f, &args, NULL, NULL);
    code = kTVMNullptr;
    result.v_int64 = 0;
  } else {
    status = MiniTVMCallArgs(f, &args, &result, &code);
  }
  *written_value = result.v_int64;
  *written_code = code;
  strncpy(message, status ? f->last_error() : "", room - 1);
  return status;
}

/* ---- The same from a thread that Python knows nothing of ---- */
typedef struct {
  const MiniTVMFunction* f;
  float *x, *y, *z;
  int64_t n;
  char before[80], message[400];
  int statuses[2];
} Task;

static void* work(void* given) {
  Task* task = given;
  int64_t value;
  int code;
  strncpy(task->before, task->f->last_error(), sizeof task->before - 1);
  task->statuses[0] = multiply(task->f, task->x, task->y, task->z, task->n, TOO_FEW, &value, &code,
                               task->message, sizeof task->message);
  task->statuses[1] = multiply(task->f, task->x, task->y, task->z, task->n, NO_DAMAGE, &value,
                               &code, task->before, sizeof task->before);
  return NULL;
}

int multiply_in_a_thread(const MiniTVMFunction* f, float* x, float* y, float* z, int64_t n,
                         char* message, size_t room) {
  pthread_t thread;
  Task task;
  memset(&task, 0, sizeof task);
  task.f = f;
  task.x = x;
  task.y = y;
  task.z = z;
  task.n = n;
  if (pthread_create(&thread, NULL, work, &task) || pthread_join(thread, NULL)) return 1;
  strncpy(message, task.message, room - 1);
  return task.before[0] || task.statuses[0] != -1 || task.statuses[1] != 0;
}

/* ---- Any one argument: the status, and what came back ---- */
int call_with(const MiniTVMFunction* f, TVMValue* value, int code, TVMValue* ret, int* ret_code,
              char* message, size_t room) {
  int status = MiniTVMCall(f, value, &code, 1, ret, ret_code);
  strncpy(message, status ? f->last_error() : "", room - 1);
  return status;
}
