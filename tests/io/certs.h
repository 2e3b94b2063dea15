/* Keys and certificates for one test run, in a temporary directory. */
#ifndef TESTS_IO_CERTS_H
#define TESTS_IO_CERTS_H

struct certs {
    char dir[64];
    char ca[96];
    char cert[2][96]; /* for localhost and 127.0.0.1, signed by the CA; two serial numbers */
    char key[2][96];
    char other_cert[96]; /* for other.example, signed by the CA */
    char other_key[96];
    char foreign_ca[96]; /* signed none of the above */
};

void certs_make(struct certs *certs);
void certs_remove(struct certs *certs);

#endif
