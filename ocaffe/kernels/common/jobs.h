/* EACH(X) is X(0) X(1) .. of the JOBS jobs that a launch does (ocaffe/passes/jobs.py). */
#ifndef OCAFFE_JOBS_H
#define OCAFFE_JOBS_H
#ifndef JOBS
#define JOBS 1
#endif
#define JOBS_1(X) X(0)
#define JOBS_2(X) JOBS_1(X) X(1)
#define JOBS_3(X) JOBS_2(X) X(2)
#define JOBS_4(X) JOBS_3(X) X(3)
#define JOBS_5(X) JOBS_4(X) X(4)
#define JOBS_6(X) JOBS_5(X) X(5)
#define JOBS_7(X) JOBS_6(X) X(6)
#define JOBS_8(X) JOBS_7(X) X(7)
#define JOBS_9(X) JOBS_8(X) X(8)
#define JOBS_10(X) JOBS_9(X) X(9)
#define JOBS_11(X) JOBS_10(X) X(10)
#define JOBS_12(X) JOBS_11(X) X(11)
#define JOBS_13(X) JOBS_12(X) X(12)
#define JOBS_14(X) JOBS_13(X) X(13)
#define JOBS_15(X) JOBS_14(X) X(14)
#define JOBS_16(X) JOBS_15(X) X(15)
#define OF_JOBS_(n) JOBS_##n
#define OF_JOBS(n) OF_JOBS_(n)
#define EACH OF_JOBS(JOBS)
#endif
