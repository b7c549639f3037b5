#include "location.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool location_own_folder(char folder[PATH_MAX])
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return false;
    program[length] = 0;
    char *bin = strstr(program, "/usr/bin/");
    if (bin == NULL)
        return false;
    *bin = 0;
    return snprintf(folder, PATH_MAX, "%s%s", program, LIBRARY_FOLDER) < PATH_MAX;
}
