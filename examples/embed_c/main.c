/* Two sequences packed into one row, through a causal convolution that does not let the first reach into the second.
 * On host execution, so that plain arrays serve as device memory. */
#include <packjit/packjit.h>
#include <stdio.h>

/* A dense tensor of three dimensions or fewer; unused ones are 0. */
static packjit_tensor fp32_tensor(float* data, int64_t a, int64_t b, int64_t c) {
  packjit_tensor tensor = {sizeof(tensor), data, PACKJIT_FP32, c != 0 ? 3 : 2, {a, b, c}, {b, 1}};
  if (c != 0) tensor.stride[0] = b * c, tensor.stride[1] = c, tensor.stride[2] = 1;
  return tensor;
}

int main(void) {
  packjit_device_options where = {sizeof(where), PACKJIT_HOST, 0};
  packjit_operator_options what = {.struct_size = sizeof(what), .op = PACKJIT_CONV1D_PACK};
  what.dtype = PACKJIT_FP32;
  what.bias = what.silu = PACKJIT_OFF;

  /* Sequences of 5 and 3 tokens: offsets into the row. */
  int32_t offsets[] = {0, 5, 8};
  packjit_tensor boundaries = {sizeof(boundaries), offsets, PACKJIT_INT32, 1, {3}, {1}};
  packjit_map_options batch = {.struct_size = sizeof(batch), .form = PACKJIT_CU_SEQLENS, .batch = 1, .seqlen = 8};

  float x[] = {1, 2, 3, 4, 5, 10, 20, 30}, weight[] = {1, 1, 1, 1}, out[8];
  packjit_tensor x_view = fp32_tensor(x, 1, 8, 1), out_view = fp32_tensor(out, 1, 8, 1);
  packjit_tensor weight_view = fp32_tensor(weight, 1, 4, 0);
  packjit_conv1d_forward_tensors tensors = {
      .struct_size = sizeof(tensors), .x = &x_view, .weight = &weight_view, .out = &out_view};

  packjit_device* device = NULL;
  packjit_operator* conv = NULL;
  packjit_map* map = NULL;
  int failed = packjit_device_open(&where, &device) || packjit_operator_create(device, &what, &conv) ||
               packjit_map_from_host(device, NULL, &batch, &boundaries, &map) ||
               packjit_conv1d_forward(conv, NULL, map, &tensors, NULL);
  if (failed) fprintf(stderr, "%s\n", packjit_last_error());
  for (int i = 0; i < 8 && !failed; ++i) printf("%g ", out[i]); /* 1 3 6 10 14 | 10 30 60 */
  printf("\n");

  packjit_map_release(map);
  packjit_operator_release(conv);
  packjit_device_release(device);
  return failed;
}
