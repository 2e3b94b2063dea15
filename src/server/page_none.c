/* For a berth built without its page (meson option page). */
#include "server/page.h"

const struct page_file page_files[] = {{0}};
const size_t page_file_count = 0;
