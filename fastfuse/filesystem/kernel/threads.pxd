# The part of <pthread.h> that the compiled modules use, and how their threads are started and named.


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_attr_t:
        pass
    ctypedef unsigned long pthread_t
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_signal(pthread_cond_t *)
    int pthread_cond_broadcast(pthread_cond_t *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_attr_init(pthread_attr_t *)
    int pthread_attr_setstacksize(pthread_attr_t *, size_t)
    int pthread_attr_setdetachstate(pthread_attr_t *, int)
    int PTHREAD_CREATE_DETACHED
    int pthread_create(pthread_t *, pthread_attr_t *, void *(*)(void *) noexcept nogil, void *)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int SIG_SETMASK
    int sigfillset(sigset_t *)
    int pthread_sigmask(int, const sigset_t *, sigset_t *)

cdef extern from "<sys/prctl.h>" nogil:
    int PR_SET_NAME
    int prctl(int, const char *)

cdef enum:
    _STACK_BYTES = 256 << 10


cdef inline int start_thread(void *(*work)(void *) noexcept nogil, void *argument) noexcept:
    """Call `work` in a thread that takes no signals and that nobody waits for; return 0 or an errno."""
    cdef pthread_attr_t attributes
    cdef pthread_t name
    cdef sigset_t every, before
    cdef int error
    pthread_attr_init(&attributes)
    pthread_attr_setstacksize(&attributes, _STACK_BYTES)
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED)
    sigfillset(&every)
    pthread_sigmask(SIG_SETMASK, &every, &before)
    error = pthread_create(&name, &attributes, work, argument)
    pthread_sigmask(SIG_SETMASK, &before, NULL)
    return error
