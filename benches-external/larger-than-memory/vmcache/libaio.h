// What vmcache uses of libaio, by system calls, for machines without the library. A write that
// fails ends the process: vmcache only asserts it, which its own build turns off.

#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef aio_context_t io_context_t;

inline int io_setup(int events, io_context_t *context) {
   long result = syscall(SYS_io_setup, events, context);
   return result < 0 ? -errno : (int)result;
}

inline int io_submit(io_context_t context, long count, iocb **requests) {
   long result = syscall(SYS_io_submit, context, count, requests);
   if (result != count) {
      perror("vmcache: io_submit");
      abort();
   }
   return (int)result;
}

inline int io_getevents(io_context_t context, long least, long most, io_event *events,
                        struct timespec *timeout) {
   long result = syscall(SYS_io_getevents, context, least, most, events, timeout);
   if (result != most) {
      perror("vmcache: io_getevents");
      abort();
   }
   for (long i = 0; i < result; i++) {
      if (events[i].res != (__s64)((iocb *)events[i].obj)->aio_nbytes) {
         fprintf(stderr, "vmcache: a write ended with %lld\n", (long long)events[i].res);
         abort();
      }
   }
   return (int)result;
}

inline void io_prep_pwrite(iocb *request, int file, void *from, size_t count, long long offset) {
   memset(request, 0, sizeof *request);
   request->aio_fildes = file;
   request->aio_lio_opcode = IOCB_CMD_PWRITE;
   request->aio_buf = (__u64)from;
   request->aio_nbytes = count;
   request->aio_offset = offset;
}
