#include "location.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

bool location_own_folder(char folder[PATH_MAX])
{
    Dl_info info;
    if (dladdr((void *)location_own_folder, &info) == 0 || info.dli_fname == NULL)
        return false;
    if (realpath(info.dli_fname, folder) == NULL)
        return false;
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return false;
    *slash = 0;
    return true;
}
