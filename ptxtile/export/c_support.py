"""What every exported header holds once: arithmetic of sizes, refusals, and the encoding of tensor maps, in C99 that is
also C++."""

from __future__ import annotations

SUPPORT = r"""
#ifndef PTXTILE_EXPORT_SUPPORT_1
#define PTXTILE_EXPORT_SUPPORT_1

/* Sizes divide as in Python: towards minus infinity. By zero gives what no size can be, so that it is refused. */
static inline int64_t ptxtile_floordiv(int64_t a, int64_t b) {
    if (b == 0) return INT64_MIN / 2;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline int64_t ptxtile_mod(int64_t a, int64_t b) {
    return b == 0 ? INT64_MIN / 2 : a - ptxtile_floordiv(a, b) * b;
}

static inline int64_t ptxtile_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ptxtile_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* CUDA_ERROR_INVALID_VALUE, with what is wrong in *reason. */
static inline CUresult ptxtile_refuse(const char **reason, const char *text) {
    if (reason != NULL) *reason = text;
    return CUDA_ERROR_INVALID_VALUE;
}

static inline int ptxtile_is_empty(int rank, const int64_t *shape) {
    int d;
    for (d = 0; d < rank; ++d)
        if (shape[d] == 0) return 1;
    return 0;
}

/* Whether shape is what is expected, and so are the strides of the dimensions that tell where elements are. */
static inline int ptxtile_shape_is(int rank, const int64_t *shape, const int64_t *expected) {
    int d;
    for (d = 0; d < rank; ++d)
        if (shape[d] != expected[d] || shape[d] < 0) return 0;
    return 1;
}

static inline int ptxtile_strides_are(int rank, const int64_t *shape, const int64_t *strides, const int64_t *expected) {
    int d;
    if (ptxtile_is_empty(rank, shape)) return 1;
    for (d = 0; d < rank; ++d)
        if (shape[d] > 1 && strides[d] != expected[d]) return 0;
    return 1;
}

/* The stride as a symbol takes it: 0 where it tells nothing. */
static inline int64_t ptxtile_stride(int rank, const int64_t *shape, const int64_t *strides, int d) {
    return ptxtile_is_empty(rank, shape) || shape[d] <= 1 ? 0 : strides[d];
}

/* Bytes from the first to behind the last element; 0 without elements. */
static inline uint64_t ptxtile_extent(int rank, const int64_t *shape, const int64_t *strides, int64_t element_bytes) {
    int64_t last = 0;
    int d;
    if (ptxtile_is_empty(rank, shape)) return 0;
    for (d = 0; d < rank; ++d) last += (shape[d] - 1) * strides[d];
    return (uint64_t)((last + 1) * element_bytes);
}

static inline int ptxtile_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    return a_bytes != 0 && b_bytes != 0 && a < b + b_bytes && b < a + a_bytes;
}

static inline int ptxtile_grid_is_legal(const int64_t *grid, const unsigned int *cluster) {
    return grid[0] >= 0 && grid[0] <= 2147483647 && grid[1] >= 0 && grid[1] <= 65535 && grid[2] >= 0 &&
           grid[2] <= 65535 && grid[0] % cluster[0] == 0 && grid[1] % cluster[1] == 0 && grid[2] % cluster[2] == 0;
}

/* cuTensorMapEncodeTiled, its rules checked; map lies at a multiple of 64 bytes. Dimensions in elements, strides in
   bytes without the innermost one, innermost first. The stride of a dimension of size 1 is made legal. */
static inline CUresult ptxtile_encode(CUtensorMap *map, CUtensorMapDataType type, int64_t element_bytes, int rank,
                                      uint64_t address, const int64_t *dimensions, const int64_t *strides,
                                      const cuuint32_t *box, CUtensorMapSwizzle swizzle,
                                      CUtensorMapL2promotion promotion, const char **reason) {
    cuuint64_t sizes[5], steps[5];
    cuuint32_t ones[5];
    int64_t extent = dimensions[0] * element_bytes;
    const int64_t limit = (int64_t)1 << 40;
    int d;
    if (address == 0 || address % 16 != 0)
        return ptxtile_refuse(reason, "the address of a tensor that is copied by TMA is not a multiple of 16 bytes");
    for (d = 0; d < rank; ++d) {
        if (dimensions[d] < 1 || dimensions[d] > ((int64_t)1 << 32))
            return ptxtile_refuse(reason, "a size of a tensor that is copied by TMA is 0, or above 2^32");
        sizes[d] = (cuuint64_t)dimensions[d];
        ones[d] = 1;
        steps[d] = 0;
    }
    for (d = 1; d < rank; ++d) {
        int64_t stride = strides[d - 1];
        if (dimensions[d] == 1 && (stride % 16 != 0 || stride <= 0 || stride >= limit))
            stride = ptxtile_min((extent + 15) / 16 * 16, limit - 16);
        if (stride % 16 != 0 || stride < 0 || stride >= limit)
            return ptxtile_refuse(reason, "a stride of a tensor that is copied by TMA is no multiple of 16 bytes");
        steps[d - 1] = (cuuint64_t)stride;
        extent = dimensions[d] * stride;
    }
    return cuTensorMapEncodeTiled(map, type, (cuuint32_t)rank, (void *)(uintptr_t)address, sizes, steps, box, ones,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* A function of a module, ready for launches with so much dynamic shared memory and such clusters. */
static inline CUresult ptxtile_function(CUfunction *function, CUmodule module, const char *name, int shared_bytes,
                                        int cluster_ctas) {
    int own = 0;
    CUresult result = cuModuleGetFunction(function, module, name);
    if (result == CUDA_SUCCESS) result = cuFuncGetAttribute(&own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *function);
    if (result == CUDA_SUCCESS && own + shared_bytes > 48 * 1024)
        result = cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes);
    if (result == CUDA_SUCCESS && cluster_ctas > 8)
        result = cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    return result;
}

/* cuLaunchKernelEx; nothing for a grid without blocks. */
static inline CUresult ptxtile_start(CUfunction function, const int64_t *grid, const unsigned int *block,
                                     const unsigned int *cluster, unsigned int shared_bytes, int cooperative,
                                     int serialization, CUstream stream, void **parameters) {
    CUlaunchConfig config;
    CUlaunchAttribute attributes[3];
    unsigned int count = 0;
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return CUDA_SUCCESS;
    memset(&config, 0, sizeof config);
    memset(attributes, 0, sizeof attributes);
    config.gridDimX = (unsigned int)grid[0];
    config.gridDimY = (unsigned int)grid[1];
    config.gridDimZ = (unsigned int)grid[2];
    config.blockDimX = block[0];
    config.blockDimY = block[1];
    config.blockDimZ = block[2];
    config.sharedMemBytes = shared_bytes;
    config.hStream = stream;
    if (cluster[0] * cluster[1] * cluster[2] > 1) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim.x = cluster[0];
        attributes[count].value.clusterDim.y = cluster[1];
        attributes[count].value.clusterDim.z = cluster[2];
        ++count;
    }
    if (cooperative) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attributes[count].value.cooperative = 1;
        ++count;
    }
    if (serialization) {
        attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        ++count;
    }
    config.attrs = attributes;
    config.numAttrs = count;
    return cuLaunchKernelEx(&config, function, parameters, NULL);
}

#endif
"""
