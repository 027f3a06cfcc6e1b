"""What a native artefact of an author's may use of the system's libraries: what is not on the list is refused.

A kernel computes: it needs mathematics, OpenMP, memory, and what the C++ compiler calls by itself. Files, signals,
timers, threads of its own, clocks and text it does not need; each would be at work in the user's own process later.
The list is a guard: it shortens the way to a refusal and is left out where the walls behind it are tried.
"""

import re

from kernelwright.judge.elf import Wanted

MATHS = ("libm.so.", "libmvec.so.")
"""Libraries that hold nothing else."""
OPENMP = re.compile(r"(?!omp_get_wti|omp_display|omp_target|GOMP_target|GOMP_offload)(GOMP|omp|__kmpc)_\w+")
"""Without its clock, its text and its ways to other devices."""
PLAIN = frozenset(
    (
        *("memcpy", "memmove", "memset", "memcmp", "memchr", "memrchr", "mempcpy", "bcmp"),
        *("__memcpy_chk", "__memmove_chk", "__memset_chk", "__mempcpy_chk"),
        *("strlen", "strnlen", "strcmp", "strncmp", "strchr", "strrchr", "strstr", "strcpy", "strncpy"),
        *(
            "malloc",
            "calloc",
            "realloc",
            "reallocarray",
            "free",
            "aligned_alloc",
            "posix_memalign",
            "memalign",
        ),
        *("malloc_usable_size", "qsort", "bsearch", "abort", "__assert_fail", "__errno_location"),
        *("pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_unlock", "pthread_once"),
        *("__tls_get_addr", "__stack_chk_fail", "__stack_chk_guard", "__libc_single_threaded"),
        *("__gxx_personality_v0", "__gmon_start__", "__pthread_key_create", "__once_proxy", "__dynamic_cast"),
        *("_ITM_registerTMCloneTable", "_ITM_deregisterTMCloneTable"),
        *("_Unwind_Resume", "_Unwind_Resume_or_Rethrow", "_Unwind_DeleteException"),
    )
)
"""Memory, its basics, locks, and what the compiler calls by itself."""
ARITHMETIC = re.compile(r"__\w*?([qhsdt]i|[bhsdxt]f|[hsdxt]c)\w*")
"""Of the compiler's own library: what the processor has no instruction for, named for the types it works on."""
EXCEPTIONS = (
    *("exception", "bad_exception", "bad_alloc", "bad_array_new_length", "bad_cast", "bad_typeid"),
    *("bad_function_call", "logic_error", "domain_error", "invalid_argument", "length_error", "out_of_range"),
    *("runtime_error", "range_error", "overflow_error", "underflow_error"),
)
_THROWN = "|".join(f"{len(name)}{name}" for name in EXCEPTIONS)
CPP = re.compile(
    r"__cxa_\w+"
    r"|_Z(n[wa]m|d[la]Pv)\w*"  # operators new and delete
    r"|_ZSt\d+(__throw_|_Rb_tree_|_Hash_bytes|__once_call)\w*|_ZSt7nothrow|_ZSt9terminatev"
    rf"|_ZN?K?St({_THROWN})[CD]\w+|_ZNKSt({_THROWN})4whatEv|_ZT[ISV]St({_THROWN})"
    r"|_ZT[IV]N10__cxxabiv1\w+|_ZT[IS][a-z]|_ZT[IS]P?K?[a-z]"
    r"|_ZNK?St7__cxx1112basic_string\w+|_ZNK?St8__detail(20_Prime_rehash_policy|15_List_node_base)\w+"
)
"""What containers, strings and exceptions of the C++ library need that is not in its headers."""
REMEDIES = (
    (r"pthread_|_ZNSt6thread|_ZNSt18condition|thrd_|sem_|sched_", "take OpenMP for threads"),
    (
        r"clock|time|_ZNSt6chrono|omp_get_wti|sleep|usleep|alarm",
        "a kernel needs no clock: PARAMS are tuned by the judge",
    ),
    (
        r"sig|signal|raise|kill|setjmp|_setjmp|longjmp|prctl",
        "a kernel handles no signals: return a named refusal",
    ),
    (r".*(printf|puts|putc|write|ostream|cout|cerr|flush|stdout|stderr)", "leave out what prints"),
    (r"f?open|fd?open|f?read|f?close|fgets|fscanf|mmap|munmap|mprotect|stat", "leave out files and mappings"),
    (r"s?rand|random|drand48|_ZNSt13random_device", "a kernel draws nothing at random"),
)
"""What to do without, by the start of the name."""


def refusal(wanted: list[Wanted]) -> str | None:
    """Return why an artefact is refused for what it wants from outside, or None."""
    for symbol in wanted:
        if not _is_needed(symbol):
            advice = next((words for name, words in REMEDIES if re.match(name, symbol.name)), "do without it")
            return (
                f"uses {symbol.name} of {symbol.library or 'another library'}, which is not on the list of what a "
                f"kernel needs (mathematics, OpenMP, memory, C++ containers and exceptions); {advice}"
            )
    return None


def _is_needed(symbol: Wanted) -> bool:
    name, library = symbol.name, symbol.library
    if library.startswith(MATHS):
        return True
    if library.startswith("libgcc_s.") and ARITHMETIC.fullmatch(name):
        return True
    return name in PLAIN or bool(OPENMP.fullmatch(name) or CPP.fullmatch(name))
