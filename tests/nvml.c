/* A libnvidia-ml.so.1 for tests on machines without a GPU: four GPUs, each as busy as the file $FAKE_NVML says.
   No header is needed: what it calls is in the process that loads it. */
extern int open(const char *path, int flags, ...);
extern long read(int fd, void *data, unsigned long size);
extern int close(int fd);
extern char *getenv(const char *name);
extern int atoi(const char *text);

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 4;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(long)(index + 1);
    return 0;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    const char *word = "Paper GPU";
    unsigned at = 0;
    do name[at] = word[at]; while (word[at++] && at < size);
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) {
    char text[16], *path = getenv("FAKE_NVML");
    int file = path ? open(path, 0) : -1;
    long size = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (size <= 0) return 3; /* not supported */
    text[size] = 0;
    rates[0] = atoi(text);
    rates[1] = 0;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[0] = 80ull << 30;
    memory[1] = 69ull << 30;
    memory[2] = 11ull << 30; /* with what the driver reserves */
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, unsigned long long *memory) {
    if (*(unsigned *)memory != 0x2000028) return 25; /* version mismatch */
    memory[1] = 80ull << 30;
    memory[2] = 1ull << 30;
    memory[3] = 69ull << 30;
    memory[4] = 10ull << 30;
    return 0;
}
