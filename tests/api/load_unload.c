/* Loads the library, uses it and unloads it, again and again: load_unload LIBRARY. Links nothing of packjit. Nothing
 * may grow: the first rounds fill what is kept, the others need the memory and the files of the first ones. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <packjit/packjit.h>
#include <stdio.h>
#include <string.h>

#define LOAD(name) __typeof__(&name) p_##name = (__typeof__(&name))dlsym(library, #name)

static int use(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  LOAD(packjit_device_open);
  LOAD(packjit_device_release);
  LOAD(packjit_operator_create);
  LOAD(packjit_operator_release);
  LOAD(packjit_operator_prepare_start);
  LOAD(packjit_task_release);
  LOAD(packjit_map_from_host);
  LOAD(packjit_map_release);
  LOAD(packjit_conv1d_forward);
  LOAD(packjit_last_error);
  packjit_device_options where = {sizeof(where), PACKJIT_HOST, 0};
  packjit_operator_options what = {.struct_size = sizeof(what), .op = PACKJIT_CONV1D_PACK, .dtype = PACKJIT_FP32};
  what.bias = what.silu = PACKJIT_OFF;
  packjit_map_options batch = {.struct_size = sizeof(batch), .form = PACKJIT_ROWS, .batch = 1, .seqlen = 4};
  packjit_shape shape = {sizeof(shape), 1, 4, 1, 1, 1, 4, PACKJIT_TOKEN_MAJOR, 0};
  float x[] = {1, 2, 3, 4}, weight[] = {0, 0, 0, 2}, out[4] = {0};
  packjit_tensor tx = {sizeof(tx), x, PACKJIT_FP32, 3, {1, 4, 1}, {4, 1, 1}}, to = tx;
  packjit_tensor tw = {sizeof(tw), weight, PACKJIT_FP32, 2, {1, 4}, {4, 1}};
  to.data = out;
  packjit_conv1d_forward_tensors tensors = {.struct_size = sizeof(tensors), .x = &tx, .weight = &tw, .out = &to};
  packjit_device* device = NULL;
  packjit_operator* op = NULL;
  packjit_map* map = NULL;
  packjit_task* task = NULL;
  int failed = p_packjit_device_open(&where, &device) || p_packjit_operator_create(device, &what, &op) ||
               p_packjit_operator_prepare_start(op, NULL, PACKJIT_FORWARD, &shape, &task) ||
               p_packjit_map_from_host(device, NULL, &batch, NULL, &map) ||
               p_packjit_conv1d_forward(op, NULL, map, &tensors, NULL);
  if (failed) fprintf(stderr, "%s\n", p_packjit_last_error());
  failed = failed || out[0] != 2 || out[3] != 8;
  p_packjit_task_release(task); /* under way, perhaps */
  p_packjit_map_release(map);
  p_packjit_operator_release(op);
  p_packjit_device_release(device);
  dlclose(library);
  return failed;
}

static int lines_of(const char* path) {
  FILE* file = fopen(path, "r");
  int lines = 0;
  for (int c = 0; file != NULL && (c = fgetc(file)) != EOF;) lines += c == '\n';
  if (file != NULL) fclose(file);
  return lines;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int i = 0; i < 60; ++i) {
    if (use(argv[1]) != 0) return 1;
  }
  size_t used = mallinfo2().uordblks;
  int mappings = lines_of("/proc/self/maps");
  for (int i = 0; i < 50; ++i) {
    if (use(argv[1]) != 0) return 1;
  }
  long grown = (long)mallinfo2().uordblks - (long)used;
  int mapped = lines_of("/proc/self/maps") - mappings;
  printf("after 50 more rounds: %ld bytes and %d mappings more\n", grown, mapped);
  /* Stacks and arenas of threads come and go. An object that every round left behind would be there 50 times. */
  return grown < 50 * 256 && mapped < 20 ? 0 : 1;
}
