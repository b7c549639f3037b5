/* What plain `nvidia-smi` prints. Temperatures, power and clocks are not simulated. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "smi.h"

static const char wide[] = "-----------------------------------------------------------------------------------------";
static const char gpu_rule[] =
    "+-----------------------------------------+------------------------+----------------------+";
static const char mig_rule[] =
    "+------------------+----------------------------------+-----------+-----------------------+";

static unsigned long long to_mib(uint64_t bytes)
{
    return bytes / (1024 * 1024);
}

static void print_head(void)
{
    char driver[80] = "", date[64];
    int cuda = 0;
    nvmlSystemGetDriverVersion(driver, sizeof driver);
    nvmlSystemGetCudaDriverVersion_v2(&cuda);
    time_t now = time(NULL);
    strftime(date, sizeof date, "%a %b %e %H:%M:%S %Y", localtime(&now));
    printf("%s\n+%s+\n", date, wide);
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %2d.%-6d|\n", driver, driver, cuda / 1000,
           cuda % 1000 / 10);
    printf("%s\n", gpu_rule);
    printf("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
           "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
           "|                                         |                        |               MIG M. |\n"
           "|=========================================+========================+======================|\n");
}

static void print_gpu(nvmlDevice_t gpu, unsigned int index)
{
    static const char *const modes[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
    char name[96] = "", bus_id[32], ecc[24] = "N/A", mig[16] = "N/A";
    unsigned int persistence = 0, mode = 0, current, pending;
    unsigned long long errors;
    nvmlMemory_t memory = {0};
    nvmlDeviceGetName(gpu, name, sizeof name);
    bus_id_of(gpu, bus_id);
    nvmlDeviceGetPersistenceMode(gpu, &persistence);
    nvmlDeviceGetComputeMode(gpu, &mode);
    nvmlDeviceGetMemoryInfo(gpu, &memory);
    if (nvmlDeviceGetTotalEccErrors(gpu, 1, 0, &errors) == NVML_SUCCESS)
        snprintf(ecc, sizeof ecc, "%llu", errors);
    if (nvmlDeviceGetMigMode(gpu, &current, &pending) == NVML_SUCCESS)
        snprintf(mig, sizeof mig, "%s%s", current ? "Enabled" : "Disabled", current != pending ? "*" : "");
    printf("| %3u  %-24.24s  %8s | %18s Off | %20s |\n", index, name, persistence ? "On " : "Off ", bus_id, ecc);
    printf("| N/A  N/A    N/A             N/A /  N/A  | %7lluMiB / %6lluMiB | %8s %11s |\n", to_mib(memory.used),
           to_mib(memory.total), "N/A", modes[mode & 3]);
    printf("|                                         |                        | %20s |\n%s\n", mig, gpu_rule);
}

static void print_mig_device(nvmlDevice_t device, unsigned int gpu, unsigned int index)
{
    unsigned int gi = 0, ci = 0;
    nvmlDeviceAttributes_t has = {0};
    nvmlMemory_t memory = {0};
    nvmlDeviceGetGpuInstanceId(device, &gi);
    nvmlDeviceGetComputeInstanceId(device, &ci);
    nvmlDeviceGetAttributes_v2(device, &has);
    nvmlDeviceGetMemoryInfo(device, &memory);
    printf("| %2u  %3u %3u %3u  | %15lluMiB / %6lluMiB   |%3u      0 | %2u %3u %4u %4u %4u |\n", gpu, gi, ci, index,
           to_mib(memory.used), to_mib(memory.total), has.multiprocessorCount, has.sharedCopyEngineCount,
           has.sharedEncoderCount, has.sharedDecoderCount, has.sharedOfaCount, has.sharedJpegCount);
    printf("%s\n", mig_rule);
}

static void print_mig_devices(const struct selection *selection)
{
    bool any = false;
    for (unsigned int i = 0; i < selection->count; i++) {
        unsigned int count = 0;
        nvmlDeviceGetMaxMigDeviceCount(selection->gpus[i], &count);
        for (unsigned int index = 0; index < count; index++) {
            nvmlDevice_t device;
            if (nvmlDeviceGetMigDeviceHandleByIndex(selection->gpus[i], index, &device) != NVML_SUCCESS)
                continue;
            if (!any)
                printf("\n+%s+\n| MIG devices:%76s|\n%s\n"
                       "| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |\n"
                       "|      ID  ID  Dev |                                  | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
                       "|==================+==================================+===========+=======================|\n",
                       wide, "", mig_rule);
            any = true;
            print_mig_device(device, selection->indexes[i], index);
        }
    }
}

static unsigned int print_processes(nvmlDevice_t gpu, unsigned int index)
{
    nvmlProcessInfo_t processes[MAX_PROCESSES];
    unsigned int count = MAX_PROCESSES;
    if (nvmlDeviceGetComputeRunningProcesses_v3(gpu, &count, processes) != NVML_SUCCESS)
        return 0;
    for (unsigned int i = 0; i < count; i++) {
        char gi[12] = "N/A", ci[12] = "N/A";
        if (processes[i].gpuInstanceId != NO_INSTANCE) {
            snprintf(gi, sizeof gi, "%u", processes[i].gpuInstanceId);
            snprintf(ci, sizeof ci, "%u", processes[i].computeInstanceId);
        }
        printf("| %4u %4s %4s %16u      C   %-33s %9lluMiB |\n", index, gi, ci, processes[i].pid, "[simulated]",
               to_mib(processes[i].usedGpuMemory));
    }
    return count;
}

int smi_table(const struct selection *selection)
{
    print_head();
    for (unsigned int i = 0; i < selection->count; i++)
        print_gpu(selection->gpus[i], selection->indexes[i]);
    print_mig_devices(selection);
    printf("\n+%s+\n| Processes:%78s|\n", wide, "");
    printf("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
           "|        ID   ID                                                               Usage      |\n"
           "|=========================================================================================|\n");
    unsigned int count = 0;
    for (unsigned int i = 0; i < selection->count; i++)
        count += print_processes(selection->gpus[i], selection->indexes[i]);
    if (count == 0)
        printf("|  No running processes found                                                             |\n");
    printf("+%s+\n", wide);
    return 0;
}
