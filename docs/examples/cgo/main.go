// Horon from Go: one allreduce through horon.h.
//
//	CGO_CFLAGS=-I<prefix>/include CGO_LDFLAGS="-L<prefix>/lib -lhoron" go build
//	horonrun -np 2 ./cgo
package main

/*
#include <stdlib.h>
#include <horon/horon.h>

// cgo does not allow Go memory that holds Go pointers to be passed on, so C puts the request together.
static int sum_in_place(const char* name, float* values, int64_t count) {
  horon_request request = {0};
  request.struct_bytes = sizeof request;
  request.name = name;
  request.op = "sum";
  request.dtype = HORON_FLOAT32;
  request.device = -1;
  request.shape = &count;
  request.ndim = 1;
  request.input = values;
  request.output = values;
  return horon_run(&request, NULL);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

func check(code C.int, call string) {
	if code != C.HORON_OK {
		fmt.Fprintf(os.Stderr, "%s: %s\n", call, C.GoString(C.horon_last_error()))
		os.Exit(1)
	}
}

func main() {
	// The sentence of the last failure belongs to the thread.
	runtime.LockOSThread()
	check(C.horon_init(), "horon_init")
	rank, size := int(C.horon_rank()), int(C.horon_size())

	values := make([]C.float, 1000)
	for i := range values {
		values[i] = C.float(rank + i)
	}
	name := C.CString("values")
	defer C.free(unsafe.Pointer(name))
	check(C.sum_in_place(name, &values[0], C.int64_t(len(values))), "horon_run")

	wrong := 0
	for i, value := range values {
		if want := size*(size-1)/2 + size*i; int(value) != want {
			wrong++
		}
	}
	fmt.Printf("rank %d of %d: %d elements summed, %d wrong\n", rank, size, len(values), wrong)
	check(C.horon_shutdown(), "horon_shutdown")
	if wrong != 0 {
		os.Exit(1)
	}
}
