/* A stand-in for libcuda that prints what it is given, one Python dictionary a line. parameter_sizes(kernel, number),
   which the test writes, gives the bytes of a parameter, 0 behind the last. */
#include <stdio.h>
#include <string.h>

#include <cuda.h>

extern int parameter_sizes(const char *kernel, int number);

static char names[16][256];
static unsigned int functions = 0, maps = 0;

static void numbers(const char *name, unsigned int count, const cuuint64_t *wide, const cuuint32_t *narrow) {
    unsigned int i;
    printf("'%s': (", name);
    for (i = 0; i < count; ++i) printf("%llu, ", wide ? (unsigned long long)wide[i] : (unsigned long long)narrow[i]);
    printf("), ");
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = (CUmodule)(uintptr_t)1;
    printf("{'call': 'load', 'bytes': %llu}\n", (unsigned long long)strlen((const char *)image));
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    printf("{'call': 'unload', 'module': %d}\n", (int)(uintptr_t)module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    if (functions == 16 || strlen(name) > 255) return CUDA_ERROR_NOT_FOUND;
    strcpy(names[functions], name);
    *function = (CUfunction)(void *)names[functions++];
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? 64 : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    printf("{'call': 'set', 'function': '%s', 'attribute': %d, 'value': %d}\n", (const char *)(void *)function,
           (int)attribute, value);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    printf("{'call': 'encode', 'aligned': %s, 'data_type': %d, 'address': %llu, ",
           (uintptr_t)map % 64 == 0 ? "True" : "False", (int)type, (unsigned long long)(uintptr_t)address);
    numbers("dimensions", rank, sizes, NULL);
    numbers("strides", rank - 1, strides, NULL);
    numbers("box", rank, NULL, box);
    numbers("element_strides", rank, NULL, element_strides);
    printf("'modes': (%d, %d, %d, %d)}\n", (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    memset(map, (int)++maps, sizeof *map); /* map number n is filled with the byte n */
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    const char *name = (const char *)(void *)function;
    unsigned int i;
    int number, byte, size;
    printf("{'call': 'launch', 'function': '%s', 'grid': (%u, %u, %u), 'block': (%u, %u, %u), 'shared': %u, "
           "'stream': %llu, 'extra': %d, 'attributes': {",
           name, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
           config->blockDimZ, config->sharedMemBytes, (unsigned long long)(uintptr_t)config->hStream, extra != NULL);
    for (i = 0; i < config->numAttrs; ++i) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            printf("'CLUSTER_DIMENSION': (%u, %u, %u), ", a->value.clusterDim.x, a->value.clusterDim.y,
                   a->value.clusterDim.z);
        else if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            printf("'COOPERATIVE': %d, ", a->value.cooperative);
        else
            printf("'PROGRAMMATIC_STREAM_SERIALIZATION': %d, ", a->value.programmaticStreamSerializationAllowed);
    }
    printf("}, 'parameters': [");
    for (number = 0; (size = parameter_sizes(name, number)) != 0; ++number) {
        printf("bytes.fromhex('");
        for (byte = 0; byte < size; ++byte) printf("%02x", ((const unsigned char *)parameters[number])[byte]);
        printf("'), ");
    }
    printf("]}\n");
    return CUDA_SUCCESS;
}
