/* A device for tests, as a plugin: its memory is the process's, under addresses that are valid
 * nowhere else. C and C++; PADDLE_HEADER compiles it against PaddlePaddle's own header.
 *
 * It is strict, and answers a caller's mistake with C_ERROR: an address that is not of the device (or
 * is, where the host's is expected), a device that was not initialised or is not the thread's current
 * one, a handle that isn't alive. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 199309L /* nanosleep */
#endif
#ifdef PADDLE_HEADER
#include "paddle/phi/backends/device_ext.h"
#else
#include <minitvm/device_plugin.h>
#include <stdint.h>
#endif
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICES 3
#define FIRST_ID 100 /* init_device makes 100 of device 0 */
#define TOTAL ((size_t)64 << 20)

/* X(name) for each function of the table that is there. */
#define EITHER_ABI(X) \
  X(initialize) X(finalize) X(init_device) X(set_device) X(get_device) X(deinit_device) \
  X(create_stream) X(destroy_stream) X(query_stream) X(stream_add_callback) X(create_event) \
  X(record_event) X(destroy_event) X(query_event) X(synchronize_device) X(synchronize_stream) \
  X(synchronize_event) X(stream_wait_event) X(device_memory_allocate) X(device_memory_deallocate) \
  X(device_memory_set) X(host_memory_allocate) X(host_memory_deallocate) \
  X(unified_memory_allocate) X(unified_memory_deallocate) X(memory_copy_h2d) X(memory_copy_d2h) \
  X(memory_copy_d2d) X(memory_copy_p2p) X(async_memory_copy_h2d) X(async_memory_copy_d2h) \
  X(async_memory_copy_d2d) X(async_memory_copy_p2p) X(get_device_count) X(get_device_list) \
  X(device_memory_stats) X(device_min_chunk_size) X(device_max_chunk_size) \
  X(device_max_alloc_size) X(device_extra_padding_size) X(device_init_alloc_size) \
  X(device_realloc_size) X(get_compute_capability) X(get_runtime_version) X(get_driver_version)
#if !defined(PADDLE_HEADER) && MINITVM_PLUGIN_ABI == 300
#define EACH_FUNCTION(X) EITHER_ABI(X)
#define OF_DEVICE
#else
#define EACH_FUNCTION(X) \
  EITHER_ABI(X) X(get_multi_process) X(is_float16_supported) X(is_bfloat16_supported)
#define OF_DEVICE C_Device device,
#endif

#define INDEX(name) F_##name,
typedef enum { EACH_FUNCTION(INDEX) FUNCTIONS } Function;
#define NAME(name) #name,
static const char* const names[] = {EACH_FUNCTION(NAME) NULL};
#define OFFSET(name) offsetof(C_DeviceInterface, name),
static const size_t offsets[] = {EACH_FUNCTION(OFFSET) 0};

/* ---- What a test asks for, before the plugin is loaded or afterwards ---- */

char plugin_type[64] = "plugin";
size_t plugin_version[3] = {0, 1, 1};
int plugin_does_not_check;          /* InitPlugin takes tables of any size, and clears none */
int plugin_fills_nothing;           /* InitPlugin returns at once */
size_t plugin_clears;               /* bytes of the table that InitPlugin clears, if not its size */
size_t plugin_device_count = DEVICES;
int plugin_microseconds;            /* how long a task of a stream takes */
int plugin_leaves_handles;          /* create_stream and create_event write no handle */
int plugin_gives_null;              /* allocations succeed with NULL */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static char left_out[FUNCTIONS];
static long calls[FUNCTIONS];
static struct { int status, after, later; } faults[FUNCTIONS];

static int find(const char* name) {
  int i = 0;
  while (i < FUNCTIONS && strcmp(names[i], name) != 0) i++;
  return i;
}

int plugin_leave_out(const char* name) {
  int i = find(name);
  if (i == FUNCTIONS) return -1;
  left_out[i] = 1;
  return 0;
}

/* The call of a function that comes after `after` others returns `status`; with `later`, the task
 * that it puts on its stream fails with it. */
int plugin_fail(const char* name, int status, int after, int later) {
  int i = find(name);
  if (i == FUNCTIONS) return -1;
  pthread_mutex_lock(&lock);
  faults[i].status = status;
  faults[i].after = after;
  faults[i].later = later;
  pthread_mutex_unlock(&lock);
  return 0;
}

long plugin_calls(const char* name) {
  int i = find(name);
  return i == FUNCTIONS ? -1 : calls[i];
}

static int fault(int i, int later) {
  int status = 0;
  pthread_mutex_lock(&lock);
  if (!later) calls[i]++;
  if (faults[i].status != 0 && faults[i].later == later && faults[i].after-- == 0) {
    status = faults[i].status;
    faults[i].status = 0;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

/* The first line of each function. */
#define ENTER(name) \
  do { \
    int injected = fault(F_##name, 0); \
    if (injected != 0) return (C_Status)injected; \
  } while (0)
#define EXPECT(condition) \
  if (!(condition)) return C_ERROR

/* ---- Devices ---- */

static int initialised, ready[DEVICES];
static __thread int current = -1; /* an id as the caller has it */

static C_Status initialize(void) {
  ENTER(initialize);
  EXPECT(!initialised);
  initialised = 1;
  return C_SUCCESS;
}

static C_Status finalize(void) {
  ENTER(finalize);
  EXPECT(initialised || left_out[F_initialize]);
  initialised = 0;
  return C_SUCCESS;
}

/* The index of a device, or -1. */
static int index_of(C_Device device) {
  int i = device->id - (left_out[F_init_device] ? 0 : FIRST_ID);
  return i >= 0 && i < DEVICES && (ready[i] || left_out[F_init_device]) ? i : -1;
}

/* The index of the device that the thread is on, or -1 where `device` is another one. */
static int index_here(C_Device device) { return current == device->id ? index_of(device) : -1; }

static C_Status init_device(C_Device device) {
  ENTER(init_device);
  EXPECT(initialised || left_out[F_initialize]);
  EXPECT(device->id >= 0 && device->id < DEVICES && !ready[device->id]);
  ready[device->id] = 1;
  device->id += FIRST_ID;
  return C_SUCCESS;
}

static C_Status deinit_device(C_Device device) {
  int i = index_of(device);
  ENTER(deinit_device);
  EXPECT(i >= 0);
  ready[i] = 0;
  return C_SUCCESS;
}

static C_Status set_device(C_Device device) {
  ENTER(set_device);
  EXPECT(index_of(device) >= 0);
  current = device->id;
  return C_SUCCESS;
}

static C_Status get_device(C_Device device) {
  ENTER(get_device);
  EXPECT(current >= 0);
  device->id = current;
  return C_SUCCESS;
}

static C_Status get_device_count(size_t* count) {
  ENTER(get_device_count);
  *count = plugin_device_count;
  return C_SUCCESS;
}

static C_Status get_device_list(size_t* devices) {
  size_t i;
  ENTER(get_device_list);
  for (i = 0; i < plugin_device_count; i++) devices[i] = i;
  return C_SUCCESS;
}

/* ---- Memory: a block's address on its device is its address here, plus the device's tag ---- */

typedef enum { DEVICE_MEMORY, HOST_MEMORY, UNIFIED_MEMORY } Kind;
typedef struct Block {
  struct Block* next;
  char* data;
  size_t size;
  Kind kind;
  int device;
} Block;

static Block* blocks;
static size_t used[DEVICES];

static uintptr_t tag(int device) { return (uintptr_t)(device + 1) << 48; }

/* What the host may read: no address of a device. */
static int is_of_host(const void* address) { return address && (uintptr_t)address >> 48 == 0; }

/* The bytes at an address of a device, or NULL where they are not all of one block. */
static char* on_device(int device, const void* address, size_t size) {
  uintptr_t here = (uintptr_t)address - tag(device), plain = (uintptr_t)address;
  char* found = NULL;
  Block* each;
  if (device < 0) return NULL;
  pthread_mutex_lock(&lock);
  for (each = blocks; each && !found; each = each->next) {
    uintptr_t at = each->kind == DEVICE_MEMORY ? here : plain;
    uintptr_t start = (uintptr_t)each->data;
    if (each->kind == HOST_MEMORY || (each->kind == DEVICE_MEMORY && each->device != device)) continue;
    if (at >= start && at - start <= each->size && size <= each->size - (at - start)) {
      found = each->data + (at - start);
    }
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static C_Status allocate(Kind kind, C_Device device, void** ptr, size_t size) {
  int i = index_here(device);
  Block* block;
  EXPECT(i >= 0 && size > 0);
  if (plugin_gives_null) {
    *ptr = NULL;
    return C_SUCCESS;
  }
  if (size > TOTAL) return C_FAILED;
  block = (Block*)malloc(sizeof *block);
  if (!block) return C_FAILED;
  block->data = (char*)malloc(size);
  if (!block->data) {
    free(block);
    return C_FAILED;
  }
  memset(block->data, 0x5A, size);
  block->size = size;
  block->kind = kind;
  block->device = i;
  pthread_mutex_lock(&lock);
  if (kind == DEVICE_MEMORY && used[i] + size > TOTAL) {
    pthread_mutex_unlock(&lock);
    free(block->data);
    free(block);
    return C_FAILED;
  }
  if (kind == DEVICE_MEMORY) used[i] += size;
  block->next = blocks;
  blocks = block;
  pthread_mutex_unlock(&lock);
  *ptr = (void*)((uintptr_t)block->data + (kind == DEVICE_MEMORY ? tag(i) : 0));
  return C_SUCCESS;
}

static C_Status deallocate(Kind kind, C_Device device, void* ptr, size_t size) {
  int i = index_here(device);
  uintptr_t data = (uintptr_t)ptr - (kind == DEVICE_MEMORY ? tag(i) : 0);
  Block **each, *found = NULL;
  EXPECT(i >= 0);
  pthread_mutex_lock(&lock);
  for (each = &blocks; *each && !found; each = &(*each)->next) {
    if ((uintptr_t)(*each)->data == data && (*each)->kind == kind && (*each)->size == size &&
        (*each)->device == i) {
      found = *each;
      *each = found->next;
      if (kind == DEVICE_MEMORY) used[i] -= size;
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  EXPECT(found);
  memset(found->data, 0xA5, found->size);
  free(found->data);
  free(found);
  return C_SUCCESS;
}

#define MEMORY(name, kind) \
  static C_Status name##_allocate(C_Device device, void** ptr, size_t size) { \
    ENTER(name##_allocate); \
    return allocate(kind, device, ptr, size); \
  } \
  static C_Status name##_deallocate(C_Device device, void* ptr, size_t size) { \
    ENTER(name##_deallocate); \
    return deallocate(kind, device, ptr, size); \
  }
MEMORY(device_memory, DEVICE_MEMORY)
MEMORY(host_memory, HOST_MEMORY)
MEMORY(unified_memory, UNIFIED_MEMORY)

static C_Status device_memory_set(C_Device device, void* ptr, unsigned char value, size_t size) {
  char* target = on_device(index_here(device), ptr, size);
  ENTER(device_memory_set);
  EXPECT(target && size > 0);
  memset(target, value, size);
  return C_SUCCESS;
}

static C_Status device_memory_stats(C_Device device, size_t* total_memory, size_t* free_memory) {
  int i = index_here(device);
  ENTER(device_memory_stats);
  EXPECT(i >= 0);
  *total_memory = TOTAL;
  *free_memory = TOTAL - used[i];
  return C_SUCCESS;
}

/* ---- Copies ---- */

typedef enum { H2D, D2H, D2D } Direction;

/* `target` and `source` are indices of devices. */
static C_Status copy(Direction direction, int target, int source, void* dst, const void* src,
                     size_t size) {
  char* to = direction == D2H ? (is_of_host(dst) ? (char*)dst : NULL) : on_device(target, dst, size);
  const char* from = direction == H2D ? (is_of_host(src) ? (const char*)src : NULL)
                                      : on_device(source, src, size);
  EXPECT(to && from && size > 0);
  memmove(to, from, size);
  return C_SUCCESS;
}

#define COPY(name, direction) \
  static C_Status name(C_Device device, void* dst, const void* src, size_t size) { \
    int i = index_here(device); \
    ENTER(name); \
    return copy(direction, i, i, dst, src, size); \
  }
COPY(memory_copy_h2d, H2D)
COPY(memory_copy_d2h, D2H)
COPY(memory_copy_d2d, D2D)

static C_Status memory_copy_p2p(C_Device dst_device, C_Device src_device, void* dst,
                                const void* src, size_t size) {
  ENTER(memory_copy_p2p);
  return copy(D2D, index_here(dst_device), index_of(src_device), dst, src, size);
}

/* ---- Streams: a thread that does one task after the other ---- */

typedef struct Event {
  struct Event* next;
  long asked, done; /* how often it was recorded, and how many of these places were reached */
  int users;        /* tasks that name it */
} Event;

typedef enum { COPY_TASK, RECORD_TASK, WAIT_TASK, CALLBACK_TASK } What;

typedef struct Task {
  struct Task* next;
  What what;
  Direction direction;
  int function, target, source;
  void* dst;
  const void* src;
  size_t size;
  Event* event;
  long place;
  C_Callback callback;
  void* user_data;
} Task;

typedef struct Stream {
  struct Stream* next;
  pthread_t thread;
  Task *first, *last;
  int device, busy, ends, waiting; /* `waiting` threads look at it */
  C_Status failed; /* the first failure since it was told */
} Stream;

static Stream* streams;
static Event* events;

static C_Status run(Stream* stream, Task* task) {
  C_Status status = C_SUCCESS;
  struct C_Device_st device;
  if (plugin_microseconds) {
    struct timespec pause;
    pause.tv_sec = 0;
    pause.tv_nsec = plugin_microseconds * 1000L;
    nanosleep(&pause, NULL);
  }
  switch (task->what) {
    case COPY_TASK:
      status = (C_Status)fault(task->function, 1);
      if (status != C_SUCCESS) return status;
      return copy(task->direction, task->target, task->source, task->dst, task->src, task->size);
    case CALLBACK_TASK:
      device.id = stream->device;
      task->callback(&device, (C_Stream)stream, task->user_data, &status);
      return status;
    case RECORD_TASK:
      pthread_mutex_lock(&lock);
      if (task->event->done < task->place) task->event->done = task->place;
      pthread_cond_broadcast(&changed);
      pthread_mutex_unlock(&lock);
      return status;
    case WAIT_TASK:
      pthread_mutex_lock(&lock);
      while (task->event->done < task->place) pthread_cond_wait(&changed, &lock);
      pthread_mutex_unlock(&lock);
      return status;
  }
  return C_INTERNAL_ERROR;
}

static void* work(void* argument) {
  Stream* stream = (Stream*)argument;
  pthread_mutex_lock(&lock);
  for (;;) {
    Task* task = stream->first;
    C_Status status;
    if (!task) {
      if (stream->ends) break;
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    stream->first = task->next;
    if (!stream->first) stream->last = NULL;
    stream->busy = 1;
    pthread_mutex_unlock(&lock);
    status = run(stream, task);
    pthread_mutex_lock(&lock);
    stream->busy = 0;
    if (status != C_SUCCESS && stream->failed == C_SUCCESS) stream->failed = status;
    if (task->event) task->event->users--;
    free(task);
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

static int is_alive(Stream* stream) {
  Stream* each;
  int found = 0;
  pthread_mutex_lock(&lock);
  for (each = streams; each && !found; each = each->next) found = each == stream;
  pthread_mutex_unlock(&lock);
  return found;
}

static int is_event(Event* event) {
  Event* each;
  int found = 0;
  pthread_mutex_lock(&lock);
  for (each = events; each && !found; each = each->next) found = each == event;
  pthread_mutex_unlock(&lock);
  return found;
}

/* The stream of a handle, if it is one of the device. */
static Stream* stream_of(C_Device device, C_Stream handle) {
  Stream* stream = (Stream*)handle;
  return is_alive(stream) && index_of(device) >= 0 && stream->device == device->id ? stream : NULL;
}

/* Puts a task on a stream. Without one it is done at once: device memory has a stream without a name,
 * where everything is. */
static C_Status put(Stream* stream, Task task) {
  Task* kept;
  if (!stream) return run(NULL, &task);
  kept = (Task*)malloc(sizeof *kept);
  if (!kept) return C_FAILED;
  *kept = task;
  kept->next = NULL;
  pthread_mutex_lock(&lock);
  if (kept->event) kept->event->users++;
  if (stream->last) stream->last->next = kept; else stream->first = kept;
  stream->last = kept;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return C_SUCCESS;
}

static Task new_task(void) {
  Task task;
  memset(&task, 0, sizeof task);
  return task;
}

static C_Status put_copy(int function, Direction direction, C_Device device, int source,
                         C_Stream handle, void* dst, const void* src, size_t size) {
  Stream* stream = handle ? stream_of(device, handle) : NULL;
  Task task = new_task();
  int target = index_here(device);
  EXPECT(target >= 0 && (stream || !handle) && size > 0);
  task.what = COPY_TASK;
  task.direction = direction;
  task.function = function;
  task.target = target;
  task.source = source;
  task.dst = dst;
  task.src = src;
  task.size = size;
  return put(stream, task);
}

#define ASYNC_COPY(name, direction) \
  static C_Status name(C_Device device, C_Stream stream, void* dst, const void* src, \
                       size_t size) { \
    ENTER(name); \
    return put_copy(F_##name, direction, device, index_of(device), stream, dst, src, size); \
  }
ASYNC_COPY(async_memory_copy_h2d, H2D)
ASYNC_COPY(async_memory_copy_d2h, D2H)
ASYNC_COPY(async_memory_copy_d2d, D2D)

static C_Status async_memory_copy_p2p(C_Device dst_device, C_Device src_device, C_Stream stream,
                                      void* dst, const void* src, size_t size) {
  ENTER(async_memory_copy_p2p);
  return put_copy(F_async_memory_copy_p2p, D2D, dst_device, index_of(src_device), stream, dst, src,
                  size);
}

static C_Status create_stream(C_Device device, C_Stream* handle) {
  Stream* stream;
  ENTER(create_stream);
  EXPECT(index_here(device) >= 0);
  if (plugin_leaves_handles) return C_SUCCESS;
  stream = (Stream*)calloc(1, sizeof *stream);
  if (!stream) return C_FAILED;
  stream->device = device->id;
  if (pthread_create(&stream->thread, NULL, work, stream) != 0) {
    free(stream);
    return C_FAILED;
  }
  pthread_mutex_lock(&lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  *handle = (C_Stream)stream;
  return C_SUCCESS;
}

static C_Status destroy_stream(C_Device device, C_Stream handle) {
  Stream* stream = handle ? stream_of(device, handle) : NULL;
  Stream** each;
  ENTER(destroy_stream);
  if (!handle) return C_SUCCESS;
  EXPECT(stream);
  pthread_mutex_lock(&lock);
  stream->ends = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
  pthread_mutex_lock(&lock);
  while (stream->waiting) pthread_cond_wait(&changed, &lock);
  for (each = &streams; *each != stream; each = &(*each)->next) {
  }
  *each = stream->next;
  pthread_mutex_unlock(&lock);
  free(stream);
  return C_SUCCESS;
}

static C_Status query_stream(C_Device device, C_Stream handle) {
  Stream* stream = handle ? stream_of(device, handle) : NULL;
  int busy;
  ENTER(query_stream);
  if (!handle) return C_SUCCESS;
  EXPECT(stream);
  pthread_mutex_lock(&lock);
  busy = stream->busy || stream->first;
  pthread_mutex_unlock(&lock);
  return busy ? C_FAILED : C_SUCCESS;
}

/* With the lock: until a stream has nothing to do, and what failed on it. */
static C_Status drain(Stream* stream) {
  C_Status status;
  stream->waiting++;
  while (stream->busy || stream->first) pthread_cond_wait(&changed, &lock);
  stream->waiting--;
  pthread_cond_broadcast(&changed);
  status = stream->failed;
  stream->failed = C_SUCCESS;
  return status;
}

static C_Status synchronize_stream(C_Device device, C_Stream handle) {
  Stream* stream = handle ? stream_of(device, handle) : NULL;
  C_Status status;
  ENTER(synchronize_stream);
  if (!handle) return C_SUCCESS;
  EXPECT(stream);
  pthread_mutex_lock(&lock);
  status = drain(stream);
  pthread_mutex_unlock(&lock);
  return status;
}

static C_Status synchronize_device(C_Device device) {
  C_Status status = C_SUCCESS;
  Stream* each;
  ENTER(synchronize_device);
  EXPECT(index_here(device) >= 0);
  pthread_mutex_lock(&lock);
  for (each = streams; each; each = each->next) {
    if (each->device == device->id) {
      C_Status one = drain(each);
      if (status == C_SUCCESS) status = one;
    }
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static C_Status stream_add_callback(C_Device device, C_Stream handle, C_Callback callback,
                                    void* user_data) {
  Stream* stream = stream_of(device, handle);
  Task task = new_task();
  ENTER(stream_add_callback);
  EXPECT(stream && callback);
  task.what = CALLBACK_TASK;
  task.callback = callback;
  task.user_data = user_data;
  return put(stream, task);
}

/* ---- Events ---- */

static C_Status create_event(C_Device device, C_Event* handle) {
  Event* event;
  ENTER(create_event);
  EXPECT(index_here(device) >= 0);
  if (plugin_leaves_handles) return C_SUCCESS;
  event = (Event*)calloc(1, sizeof *event);
  if (!event) return C_FAILED;
  pthread_mutex_lock(&lock);
  event->next = events;
  events = event;
  pthread_mutex_unlock(&lock);
  *handle = (C_Event)event;
  return C_SUCCESS;
}

static C_Status destroy_event(C_Device device, C_Event handle) {
  Event* event = (Event*)handle;
  Event** each;
  ENTER(destroy_event);
  EXPECT(index_of(device) >= 0);
  if (!handle) return C_SUCCESS;
  EXPECT(is_event(event));
  pthread_mutex_lock(&lock);
  while (event->users) pthread_cond_wait(&changed, &lock);
  for (each = &events; *each != event; each = &(*each)->next) {
  }
  *each = event->next;
  pthread_mutex_unlock(&lock);
  free(event);
  return C_SUCCESS;
}

static C_Status put_event(int waits, C_Device device, C_Stream handle, C_Event event_handle) {
  Stream* stream = handle ? stream_of(device, handle) : NULL;
  Event* event = (Event*)event_handle;
  Task task = new_task();
  EXPECT(index_of(device) >= 0 && (stream || !handle));
  if (!event) return C_SUCCESS;
  EXPECT(is_event(event));
  pthread_mutex_lock(&lock);
  task.what = waits ? WAIT_TASK : RECORD_TASK;
  task.event = event;
  task.place = waits ? event->asked : ++event->asked;
  pthread_mutex_unlock(&lock);
  return put(stream, task);
}

static C_Status record_event(C_Device device, C_Stream stream, C_Event event) {
  ENTER(record_event);
  return put_event(0, device, stream, event);
}

static C_Status stream_wait_event(C_Device device, C_Stream stream, C_Event event) {
  ENTER(stream_wait_event);
  return put_event(1, device, stream, event);
}

static C_Status query_event(C_Device device, C_Event handle) {
  Event* event = (Event*)handle;
  int done;
  ENTER(query_event);
  EXPECT(index_of(device) >= 0);
  if (!handle) return C_SUCCESS;
  EXPECT(is_event(event));
  pthread_mutex_lock(&lock);
  done = event->done >= event->asked;
  pthread_mutex_unlock(&lock);
  return done ? C_SUCCESS : C_FAILED;
}

static C_Status synchronize_event(C_Device device, C_Event handle) {
  Event* event = (Event*)handle;
  long place;
  ENTER(synchronize_event);
  EXPECT(index_of(device) >= 0);
  if (!handle) return C_SUCCESS;
  EXPECT(is_event(event));
  pthread_mutex_lock(&lock);
  place = event->asked;
  event->users++;
  while (event->done < place) pthread_cond_wait(&changed, &lock);
  event->users--;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return C_SUCCESS;
}

/* ---- Numbers ---- */

#define NUMBER_OF_DEVICE(name, value) \
  static C_Status name(C_Device device, size_t* result) { \
    ENTER(name); \
    EXPECT(index_of(device) >= 0); \
    *result = (value); \
    return C_SUCCESS; \
  }
NUMBER_OF_DEVICE(device_min_chunk_size, 256)
NUMBER_OF_DEVICE(device_max_chunk_size, (size_t)8 << 20)
NUMBER_OF_DEVICE(device_max_alloc_size, (size_t)32 << 20)
NUMBER_OF_DEVICE(device_extra_padding_size, 32)
NUMBER_OF_DEVICE(device_init_alloc_size, (size_t)1 << 20)
NUMBER_OF_DEVICE(device_realloc_size, (size_t)2 << 20)

#define VERSION(name, value) \
  static C_Status name(OF_DEVICE size_t* result) { \
    ENTER(name); \
    *result = (value); \
    return C_SUCCESS; \
  }
#if !defined(PADDLE_HEADER) && MINITVM_PLUGIN_ABI == 300
VERSION(get_compute_capability, 75)
VERSION(get_runtime_version, 11020)
VERSION(get_driver_version, 11040)
#else
NUMBER_OF_DEVICE(get_compute_capability, 75)
NUMBER_OF_DEVICE(get_runtime_version, 11020)
NUMBER_OF_DEVICE(get_driver_version, 11040)
NUMBER_OF_DEVICE(get_multi_process, 4)

static C_Status is_float16_supported(C_Device device, bool* supported) {
  ENTER(is_float16_supported);
  EXPECT(index_of(device) >= 0);
  *supported = true;
  return C_SUCCESS;
}

static C_Status is_bfloat16_supported(C_Device device, bool* supported) {
  ENTER(is_bfloat16_supported);
  EXPECT(index_of(device) >= 0);
  *supported = false;
  return C_SUCCESS;
}
#endif

/* ---- What is alive, and the bytes behind an address, for tests ---- */

long plugin_live(const char* what) {
  long count = 0;
  Block* block;
  Stream* stream;
  Event* event;
  pthread_mutex_lock(&lock);
  if (strcmp(what, "memory") == 0) for (block = blocks; block; block = block->next) count++;
  if (strcmp(what, "streams") == 0) for (stream = streams; stream; stream = stream->next) count++;
  if (strcmp(what, "events") == 0) for (event = events; event; event = event->next) count++;
  pthread_mutex_unlock(&lock);
  return count;
}

/* ---- The entry ---- */

void InitPlugin(CustomRuntimeParams* params) {
  int i;
  if (plugin_fills_nothing) return;
  if (!plugin_does_not_check) {
    PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
    memset((void*)params->interface, 0, plugin_clears ? plugin_clears : sizeof(C_DeviceInterface));
  }
  params->version.major = plugin_version[0];
  params->version.minor = plugin_version[1];
  params->version.patch = plugin_version[2];
  params->device_type = plugin_type[0] ? plugin_type : NULL;
  params->sub_device_type = (char*)"v1";
#define FILL_IN(name) params->interface->name = name;
  EACH_FUNCTION(FILL_IN)
  for (i = 0; i < FUNCTIONS; i++) {
    if (left_out[i]) memset((char*)params->interface + offsets[i], 0, sizeof(void*));
  }
}

#ifdef __cplusplus
} /* extern "C" */
#endif
