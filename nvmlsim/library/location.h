/* Where the running code lies; the library and the static program find that out in different ways. */
#ifndef NVMLSIM_LOCATION_H
#define NVMLSIM_LOCATION_H

#include <limits.h>
#include <stdbool.h>

#define LIBRARY_FOLDER "/usr/lib/x86_64-linux-gnu"

/* The driver root's library folder that this library or program belongs to. */
bool location_own_folder(char folder[PATH_MAX]);

#endif
