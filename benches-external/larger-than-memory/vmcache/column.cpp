// vmcache as a library: reads and updates of words of its pages. The first byte of a page is
// vmcache's own. Environment when it is loaded: BLOCK, VIRTGB, PHYSMB (see `build`).

#define main vmcache_main
#include "vmcache.cpp"
#undef main

// Returns the word at a place of a page, read optimistically.
extern "C" u64 vmcache_read(u64 page, u64 word) {
   for (;;) {
      try {
         GuardO<u64> guard(page);
         u64 value = ((volatile u64 *)guard.ptr)[word];
         guard.release();
         return value;
      } catch (const OLCRestartException &) {
      }
   }
}

// Changes the word at a place of a page.
extern "C" void vmcache_update(u64 page, u64 word, u64 value) {
   GuardX<Page> guard(page);
   ((u64 *)guard.ptr)[word] = value;
}
