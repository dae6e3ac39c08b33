// Visibility of the shared library. The library is compiled with hidden symbols; what a public header declares inside
// `namespace vecinfer VECINFER_API` is exported, everything else is not.
#ifndef VECINFER_EXPORT_H
#define VECINFER_EXPORT_H

#if defined(__GNUC__)
#define VECINFER_API __attribute__((visibility("default")))
#else
#define VECINFER_API
#endif

#endif
